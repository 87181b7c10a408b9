from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from chiasm.engine.frontend.chat_template import ChatTemplate, load_chat_template
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.errors import UserError
from tests.checkpoints.common import CHAT_TEMPLATE, write_json
from tests.engine.frontend.support import (
    CALL,
    IMAGE,
    SPECIAL_TOKENS,
    SYSTEM,
    TOOL,
    TOOL_TEMPLATES,
    assistant,
    make_builder,
    ours,
    refused,
    render,
    text,
    user,
)

# In the manner of text models: tools and documents that may be None, a date, alternating roles, trimmed texts, what
# the model wrote between {% generation %} tags, and its reasoning cut out of earlier answers.
ALTERNATING = """\
{%- if not bos_token is defined or not bos_token %}{% set bos_token = '<|endoftext|>' %}{% endif -%}
{{- bos_token }}
{%- if tools is not none %}TOOLS{% endif %}{% if documents is not none %}DOCUMENTS{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set head = messages[0]['content'] | trim + '\\n' %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set head = '' %}
{%- endif %}
{%- set ns = namespace(turns=0, last='') %}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate, got ' + message['role']) }}
    {%- endif %}
    {%- if message['content'] is not string %}{% continue %}{% endif %}
    {%- set ns.turns = ns.turns + 1 %}
    {%- if message.role == 'assistant' %}
        {%- generation %}
        {%- set ns.last = message.content.split('</think>')[-1].lstrip('\\n') %}
[{{ ns.last | trim }}]{{ eos_token }}
        {%- endgeneration %}
    {%- else %}
{{ head if loop.first else '' }}({{ message.content | trim }})
    {%- endif %}
    {%- if ns.turns > 8 %}{% break %}{% endif %}
{%- endfor %}
{{- '\\nturns: %d' % ns.turns }}
{%- if add_generation_prompt %}{{ '\\n<|im_start|>' }}{% endif %}"""

# In the manner of models that think and call tools: macros, mappings, JSON, white space kept.
AGENT = """\
{% macro show(content) -%}
  {%- if content is string %}{{ content }}
  {%- elif content is iterable and content is not mapping %}
    {%- for item in content -%}
      {% if item.type == 'text' %}{{ item.text }}{% else %}<|image_pad|>{% endif %}
    {%- endfor %}
  {%- elif content is none or content is undefined %}{% endif %}
{%- endmacro %}
{% for m in messages %}
  <{{ m.role | capitalize }}{% if m.name %} name={{ m.name | tojson }}{% endif %}>
  {% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}
{{ show(m.content) }}
  {% for call in m.tool_calls or [] %}
    {% if call.function is defined %}{% set call = call.function %}{% endif %}
{"name": "{{ call.name }}", "arguments": {{ call.arguments | tojson }}}
{{ call.arguments | tojson(indent=2) }} {{ call.arguments.items() | list | length }}
  {% endfor %}
{% endfor %}
{% if enable_thinking is defined and enable_thinking is false %}<think></think>{% endif %}
{{ style | default('plain') | upper }} {{ unknown }} {{ '-' if unknown is not defined else unknown.x }}"""

TEMPLATES = {"qwen": CHAT_TEMPLATE, "alternating": ALTERNATING, "agent": AGENT}
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "text": [user("  Hello, wörld! 1 < 2 > 0 <| \n")],
    "system": [SYSTEM, user("Hi"), assistant("<think>hm</think>\n\nHello  "), user("Bye\n")],
    "images": [user([IMAGE, text("What is this?"), IMAGE, text(" And {{ this }}? ")])],
    "parts": [user([text("one"), text(" two ")]), assistant("three"), user("four")],
    "tools": [
        user("Weather?"),
        assistant(None, tool_calls=[CALL], reasoning_content="I should look."),
        {"role": "tool", "content": '{"sun": true}', "tool_call_id": "call-1", "name": "weather"},
    ],
}


def reference(hf: Any, source: str, messages: list[dict[str, Any]], **options: Any) -> str:
    """Hugging Face's rendering."""
    messages = json.loads(json.dumps(messages).replace("image_url", "image"))
    return str(hf.apply_chat_template(messages, chat_template=source, tokenize=False, **options))


READ_BY = {
    "qwen": [name for name in CONVERSATIONS if name != "tools"],
    "agent": [*CONVERSATIONS],
    "alternating": ["text", "system"],
}


@pytest.mark.parametrize(("template", "conversation"), [(t, c) for t, each in READ_BY.items() for c in each])
@pytest.mark.parametrize("options", [{}, {"add_generation_prompt": True}, {"enable_thinking": False, "style": "ß"}])
def test_renders_as_hugging_face_does(
    tokenizer: Tokenizer, hf: Any, template: str, conversation: str, options: dict[str, Any]
) -> None:
    source, messages = TEMPLATES[template], CONVERSATIONS[conversation]
    assert ours(tokenizer, source, messages, **options) == reference(hf, source, messages, **options)


def test_the_templates_above_do_what_they_are_for(tokenizer: Tokenizer) -> None:
    shown = ours(tokenizer, ALTERNATING, CONVERSATIONS["system"])
    assert shown == "<|endoftext|>Be brief.\n(Hi)[Hello]<|im_end|>(Bye)\nturns: 3"
    shown = ours(tokenizer, AGENT, CONVERSATIONS["tools"], enable_thinking=False)
    assert '"arguments": {"city": "Zürich <&\'\\">", "days": [1, 2.5, null, true]}' in shown
    assert "<think>I should look.</think>" in shown


@pytest.mark.parametrize("last", ["The answer is", "I", "e", "<", "im_end", "  spaced  ", "two\nlines\n", "end ."])
@pytest.mark.parametrize("template", ["qwen", "alternating"])
def test_continues_the_final_message_as_hugging_face_does(
    tokenizer: Tokenizer, hf: Any, template: str, last: str
) -> None:
    messages = [user("Say: I see, e.g. two\nlines <"), assistant(last)]
    source = TEMPLATES[template]
    expected = reference(hf, source, messages, continue_final_message=True)
    assert ours(tokenizer, source, messages, continue_final_message=True) == expected
    assert expected.endswith(last if template == "qwen" else last.strip())


def test_continues_the_last_of_several_parts(tokenizer: Tokenizer, hf: Any) -> None:
    messages = [user("Hi"), assistant([text("one"), text("two ")])]
    expected = reference(hf, CHAT_TEMPLATE, messages, continue_final_message=True)
    assert ours(tokenizer, CHAT_TEMPLATE, messages, continue_final_message=True) == expected
    assert expected.endswith("onetwo ")


def test_a_marked_end_in_a_users_text_is_just_left_out(tokenizer: Tokenizer) -> None:
    messages = [user("a\ufdd1 b"), assistant("c\ufdd1 d")]
    assert ours(tokenizer, CHAT_TEMPLATE, messages, continue_final_message=True).endswith(
        "user\na b<|im_end|>\n<|im_start|>assistant\nc d"
    )


def test_no_head_of_an_answer_is_asked_for_when_a_message_is_continued(tokenizer: Tokenizer) -> None:
    source = "{{ add_generation_prompt }}:{% for m in messages %}{{ m.content }}.{% endfor %}"
    options = {"add_generation_prompt": True, "continue_final_message": True}
    assert ours(tokenizer, source, [user("a"), assistant("b")], **options) == "False:a.b"


@pytest.mark.parametrize("last", ["", " \n", [], [IMAGE], [text("a"), IMAGE], None])
def test_a_final_message_without_text_at_its_end_cant_be_continued(tokenizer: Tokenizer, last: Any) -> None:
    with refused("continue_final_message", "text"):
        ours(tokenizer, CHAT_TEMPLATE, [user("Hi"), assistant(last)], continue_final_message=True)


def test_a_final_message_that_the_template_drops_cant_be_continued(tokenizer: Tokenizer) -> None:
    source = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}"
    with refused("continue_final_message", "template"):
        ours(tokenizer, source, [user("Hi"), assistant("Ho")], continue_final_message=True)


def test_reasoning_has_the_names_that_templates_know(tokenizer: Tokenizer, hf: Any) -> None:
    source = "{% for m in messages %}{{ m.reasoning_content }},{{ m.thinking }},{{ m.content }};{% endfor %}"
    for name in ("reasoning_content", "reasoning"):
        messages = [user("Hi"), assistant("Ho", **{name: "because"})]
        shown = ours(tokenizer, source, messages)
        assert shown == reference(hf, source, messages) == ",,Hi;because,because,Ho;"


def test_arguments_that_travel_as_json_text_are_objects_for_the_template(tokenizer: Tokenizer) -> None:
    as_text = {**CALL, "function": {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}}
    both = [ours(tokenizer, AGENT, [user("?"), assistant(None, tool_calls=[call])]) for call in (CALL, as_text)]
    assert both[0] == both[1]


STRINGS_ONLY = "{% for m in messages %}{{ m.content }};{% endfor %}"
PARTS_ONLY = "{% for m in messages %}{% for p in m.content %}{{ p.text or '<|image_pad|>' }}{% endfor %};{% endfor %}"


def test_a_template_gets_the_form_of_content_that_it_reads(tokenizer: Tokenizer) -> None:
    messages = [user("one"), user([text("two"), text("three")])]
    assert ours(tokenizer, STRINGS_ONLY, messages) == "one;two\nthree;"
    assert ours(tokenizer, PARTS_ONLY, messages) == "one;twothree;"
    assert ours(tokenizer, PARTS_ONLY, [user([text("see "), IMAGE])]) == "see <|image_pad|>;"


def test_images_are_refused_by_a_template_that_reads_text_only(tokenizer: Tokenizer) -> None:
    with refused("messages[1].content", "image"):
        ours(tokenizer, STRINGS_ONLY, [user("one"), user([text("two"), IMAGE])])


def test_a_template_that_cant_be_tried_gets_both_forms() -> None:
    template = ChatTemplate("{% if messages | length < 2 %}{{ raise_exception('no') }}{% endif %}", {})
    assert template.probe.form("user") == (True, True)


def run(source: str, **kwargs: Any) -> str:
    return ChatTemplate(source, SPECIAL_TOKENS).render([user("Hi")], add_generation_prompt=True, kwargs=kwargs)


def test_the_date_is_there() -> None:
    assert run("{{ strftime_now('%Y-%m-%d') }}") == time.strftime("%Y-%m-%d")


def test_special_tokens_are_there_and_can_be_overridden() -> None:
    assert run("{{ eos_token }}{{ pad_token }}{{ bos_token }}") == "<|im_end|><|endoftext|>"
    assert run("{{ eos_token }}", eos_token="</s>") == "</s>"


def test_json_is_not_escaped_for_html() -> None:
    source = "{{ x | tojson }} {{ x | tojson(ensure_ascii=true, separators=(',', ':'), sort_keys=true) }}"
    assert run(source, x={"b": "<ü>", "a": 1}) == '{"b": "<ü>", "a": 1} {"a":1,"b":"<\\u00fc>"}'


def test_the_generation_tag_is_a_scope_that_shows_its_inside() -> None:
    source = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert run(source) == "21"


@pytest.mark.parametrize(
    "escape",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ ''['__class__']['__mro__'] }}",
        "{{ (''|attr('__class__')).mro() }}",
        "{{ '{0.__class__.__mro__}'.format('') }}",
        "{{ '%s' | format('').__class__.__mro__ }}",
        "{{ raise_exception.__globals__['json'].dumps(1) }}",
        "{{ strftime_now.__globals__.os.getcwd() }}",
        "{{ namespace.__globals__['Path']('.') }}",
        "{{ cycler.__init__.__globals__.os.getcwd() }}",
        "{{ lipsum.__globals__['os'].getcwd() }}",
        "{{ self.__init__.__globals__ }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ dict.mro() }}",
        "{% set ns = namespace() %}{% set ns.__call__ = raise_exception %}",
        "{{ namespace(__call__=raise_exception) }}",
        "{{ namespace({'_x': 1}) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}",
    ],
)
def test_the_sandbox_holds(escape: str) -> None:
    """Threat: chat template (CVE-2025-61620)."""
    try:
        shown = run(escape)
    except UserError:
        return
    assert shown in ("", "{}"), "it shows what it must not see"


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace() %}{% set ns.__call__ = raise_exception %}",
        "{{ namespace(__call__=raise_exception) }}",
        "{{ namespace({'_x': 1}) }}",
    ],
)
def test_a_namespace_has_public_names_only(source: str) -> None:
    with refused("messages", "namespace"):
        run(source)
    assert run("{% set ns = namespace(a=1, self=2) %}{% set ns.b = 3 %}{{ ns.a }}{{ ns.self }}{{ ns.b }}") == "123"


def test_a_sandboxed_value_shows_nothing_of_python() -> None:
    assert "class" not in run("{{ ''.__class__ }}{{ messages.__class__ }}{{ raise_exception.__code__ }}")


@pytest.mark.parametrize("count", ["10**9", "10**5 + 1"])
def test_a_long_loop_is_refused_at_once(count: str) -> None:
    with refused("messages", "OverflowError"):
        run(f"{{% for i in range({count}) %}}{{% endfor %}}")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('only one turn') }}", ["refuses", "only one turn"]),
        ("{{ messages[0].content.nothing.more }}", ["refuses", "nothing"]),
        ("{{ 1 + 'a' }}", ["fails", "TypeError"]),
        ("{{ 1 / 0 }}", ["fails", "ZeroDivisionError"]),
        ("{{ messages | tojson(indent=messages) }}", ["fails"]),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", ["fails", "RecursionError"]),
        ("{{ 'a'.encode('no such codec') }}", ["fails", "LookupError"]),
        ("{{ raise_exception('x' * 5000) }}", ["refuses"]),
        ("{{ raise_exception('a\ufdd0\x00b') }}", ["ab"]),
    ],
)
def test_a_templates_failure_is_a_short_user_error(source: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        run(source)
    assert caught.value.param == "messages"
    assert all(word in caught.value.message for word in words)
    assert len(caught.value.message) < 500


@pytest.mark.parametrize(
    "source", ["{% if %}", "{{ a", "{% nosuchtag %}", "{% generation %}", "{{ a | nosuchfilter }}"]
)
def test_a_template_that_does_not_compile_is_a_user_error(source: str) -> None:
    with refused("chat_template", "does not compile"):
        ChatTemplate(source, {})


@pytest.mark.parametrize(
    "key", ["messages", "tools", "add_generation_prompt", "chat_template", "tokenize", "raise_exception"]
)
def test_reserved_names_are_refused(key: str) -> None:
    with refused("chat_template_kwargs", key, "reserved"):
        run("x", **{key: True})


def test_any_other_name_is_the_templates_own_affair() -> None:
    assert run("{{ self }}{{ context }}", context="c").endswith("c")
    assert run("{{ name }}", name="n", self="s") == "n"


# --- where the template comes from


def put(folder: Path, **files: str | dict[str, Any]) -> Path:
    """A folder with files, named with ``__`` for the dot."""
    for name, content in files.items():
        path = folder / name.replace("__", ".")
        if isinstance(content, str):
            path.write_text(content, encoding="utf-8")
        else:
            write_json(path, content)
    return folder


def source_of(folder: Path, override: str | None = None) -> str | None:
    template = load_chat_template(folder, override)
    return template and template.render([user("Hi")], add_generation_prompt=False, kwargs={})


def test_the_newest_form_wins(tmp_path: Path) -> None:
    put(tmp_path, tokenizer_config__json={"chat_template": "tokenizer"})
    assert source_of(tmp_path) == "tokenizer"
    put(tmp_path, chat_template__json={"chat_template": "processor"})
    assert source_of(tmp_path) == "processor"
    put(tmp_path, chat_template__jinja="file")
    assert source_of(tmp_path) == "file"
    assert source_of(tmp_path, "override\n") == "override"


def test_the_default_of_several_named_templates(tmp_path: Path) -> None:
    named = {"tool_use": "with tools", "default": "without"}
    listed = [{"name": name, "template": source} for name, source in named.items()]
    for form in (listed, named, [*listed, "junk"]):
        put(tmp_path, tokenizer_config__json={"chat_template": form})
        assert source_of(tmp_path) == "without"


def test_additional_templates_do_not_replace_the_default(tmp_path: Path) -> None:
    put(tmp_path, chat_template__jinja="default")
    (tmp_path / "additional_chat_templates").mkdir()
    put(tmp_path / "additional_chat_templates", tool_use__jinja="with tools")
    assert source_of(tmp_path) == "default"


@pytest.mark.parametrize("form", [None, [], {}, 7, [{"name": "tool_use", "template": "x"}], {"default": 7}])
def test_no_template_is_none(tmp_path: Path, tokenizer: Tokenizer, form: Any) -> None:
    put(tmp_path, tokenizer_config__json={"chat_template": form})
    assert load_chat_template(tmp_path, None) is None
    with refused("messages", "no chat template", "--chat-template"):
        render(make_builder(tokenizer, None), [user("Hi")])


def test_override_by_file(tmp_path: Path) -> None:
    put(tmp_path, tokenizer_config__json={"chat_template": "checkpoint"}, own__jinja="{# mine #}own {{ 1 }}")
    assert source_of(tmp_path, str(tmp_path / "own.jinja")) == "own 1"
    assert source_of(tmp_path, "{{ 'text' }}") == "text"


@pytest.mark.parametrize("override", ["nosuchfile.jinja", "x" * 5000, "."])
def test_an_override_that_is_no_file_is_a_user_error(tmp_path: Path, override: str) -> None:
    with refused("chat_template", "file"):
        load_chat_template(tmp_path, override)


def test_a_template_that_is_no_text_is_a_user_error(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with refused("chat_template", "chat_template.jinja"):
        load_chat_template(tmp_path, None)


def test_special_tokens_come_from_the_tokenizers_settings(tmp_path: Path) -> None:
    put(
        tmp_path,
        tokenizer_config__json={
            "chat_template": "{{ bos_token }}|{{ eos_token }}|{{ unk_token }}|{{ add_bos_token }}",
            "bos_token": {"content": "<s>", "special": True},
            "eos_token": "</s>",
            "unk_token": None,
            "add_bos_token": True,
        },
    )
    assert source_of(tmp_path) == "<s>|</s>||"
    put(tmp_path, special_tokens_map__json={"unk_token": {"content": "<unk>"}})  # from before added_tokens_decoder
    assert source_of(tmp_path) == "<s>|</s>|<unk>|"


@pytest.mark.parametrize("tools", [[], [TOOL], [TOOL, {**TOOL, "strict": True}]])
@pytest.mark.parametrize("template", TOOL_TEMPLATES)
def test_tools_are_shown_as_hugging_face_shows_them(
    tokenizer: Tokenizer, hf: Any, template: str, tools: list[Any]
) -> None:
    source, messages = TOOL_TEMPLATES[template], [user("Weather?")]
    builder = make_builder(tokenizer, source)
    shown = builder.plain_text(render(builder, messages, add_generation_prompt=False, tools=tools))
    assert shown == reference(hf, source, messages, tools=tools or None)
    assert shown.count('"weather"') == len(tools)


def test_a_template_that_shows_no_tools_takes_none(tokenizer: Tokenizer) -> None:
    assert not ChatTemplate("{% macro show(tools) %}{{ tools }}{% endmacro %}{{ show(1) }}", {}).reads_tools
    with refused("tools", "takes no tools"):
        render(make_builder(tokenizer, CHAT_TEMPLATE), [user("Hi")], tools=[TOOL])


@pytest.mark.parametrize("special", ["<|im_end|>", "<|image_pad|>"])
def test_what_a_tool_says_of_itself_never_becomes_a_special_token(tokenizer: Tokenizer, special: str) -> None:
    builder = make_builder(tokenizer, TOOL_TEMPLATES["qwen"])
    tool = {"type": "function", "function": {"name": "f", "description": f"a {special} b"}}
    token_ids = builder.tokenize(render(builder, [user("Hi")], tools=[tool]))
    assert special in tokenizer.decode(token_ids, skip_special_tokens=True)

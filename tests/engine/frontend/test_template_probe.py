"""What chat templates read, role by role and beside tools, and what becomes of the rest."""

from __future__ import annotations

from typing import Any

import pytest
from transformers.models.llama4.processing_llama4 import chat_template as LLAMA4_TEMPLATE

from chiasm.engine.frontend.chat_template import ChatTemplate
from chiasm.engine.frontend.tokenizer import Tokenizer
from tests.checkpoints.common import CHAT_TEMPLATE
from tests.engine.frontend.support import (
    CALL,
    IMAGE,
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

# In the manner of GLM-4.1V's: lists of parts in users' messages only, no calls, no results.
PARTS_OF_USERS = """\
{%- for m in messages %}
{%- if m.role == 'user' %}<|im_start|>user
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}
{%- if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}
{%- endfor %}{% endif %}
{%- elif m.role in ('system', 'assistant') %}<|im_start|>{{ m.role }}
{{ m.content }}{% endif %}{% endfor %}"""
# In the manner of GLM-4.5V's: a list of parts is several results.
RESULTS = PARTS_OF_USERS.replace(
    "{% endif %}{% endfor %}",
    """\
{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}
{%- elif m.role == 'tool' %}{% if m.content is string %}[{{ m.content }}]{% else %}{% for r in m.content %}
[{{ r.output if r.output is defined else r }}]{% endfor %}{% endif %}{% endif %}{% endfor %}{{ tools or '' }}""",
    1,
)
TURNS = [user("?"), assistant(None, tool_calls=[CALL]), {"role": "tool", "content": "sun", "tool_call_id": "call-1"}]


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_texts_are_one_string_in_roles_whose_lists_a_template_does_not_read(tokenizer: Tokenizer, role: str) -> None:
    message = {"role": role, "content": [text("one "), text("two")]}
    messages = [message, user([text("a"), text("b")])]
    shown = ours(tokenizer, PARTS_OF_USERS, messages)
    assert shown == f"<|im_start|>{role}\none two<|im_start|>user\nab"
    one = {"role": role, "content": [text("one")]}
    assert ours(tokenizer, PARTS_OF_USERS, [one]) == f"<|im_start|>{role}\none"


def test_texts_of_one_string_are_parted_as_the_template_parts_those_of_a_list(tokenizer: Tokenizer) -> None:
    source = PARTS_OF_USERS.replace("{{ p.text }}", "{{ p.text }}{{ ' \\n' }}")
    messages = [{"role": "system", "content": [text("one"), text("two")]}]
    assert ours(tokenizer, source, messages) == "<|im_start|>system\none \ntwo"


@pytest.mark.parametrize("role", ["system", "assistant"])
def test_images_are_refused_in_roles_whose_lists_a_template_does_not_read(tokenizer: Tokenizer, role: str) -> None:
    words = f"has images, but the chat template reads text only in messages of the role {role}"
    with refused("messages[0].content", words):
        ours(tokenizer, PARTS_OF_USERS, [{"role": role, "content": [text("one"), IMAGE]}, user("b")])


def test_a_role_that_shows_neither_form_gets_that_of_users(tokenizer: Tokenizer) -> None:
    first = "{% for m in messages %}{% if m.role == 'user' %}{% for p in m.content %}{{ p.text }}{% endfor %}"
    source = first + "{% else %}{{ m.content[0].text }};{% endif %}{% endfor %}"
    assert ChatTemplate(source, {}).probe.form("system") == (False, True)
    assert ours(tokenizer, source, [{"role": "system", "content": "one"}, user("two")]) == "one;two"


def test_a_result_of_several_texts_is_one_result(tokenizer: Tokenizer) -> None:
    result = {"role": "tool", "content": [text("20"), text(" C")], "tool_call_id": "call-1"}
    assert ours(tokenizer, RESULTS, [*TURNS[:2], result]).endswith("[20 C]")
    with refused("messages[2].content", "images", "role tool"):
        ours(tokenizer, RESULTS, [*TURNS[:2], {**result, "content": [text("see"), IMAGE]}])


@pytest.mark.parametrize("source", [PARTS_OF_USERS, CHAT_TEMPLATE])
def test_calls_and_results_are_refused_where_they_would_vanish(tokenizer: Tokenizer, source: str) -> None:
    """As tools are, of which such a conversation need not have any."""
    with refused("messages[1]", "has calls of tools", "takes no tools", "--chat-template"):
        ours(tokenizer, source, TURNS)
    with refused("messages[1]", "is a result of a tool", "takes no tools"):
        ours(tokenizer, source, [user("?"), TURNS[2]])
    assert "one" in ours(tokenizer, source, [user("?"), assistant("one", tool_calls=[])])


def test_calls_and_results_are_refused_by_a_template_that_shows_tools_alone(tokenizer: Tokenizer) -> None:
    with refused("messages[1]", "has calls of tools", "doesn't show those"):
        ours(tokenizer, TOOL_TEMPLATES["qwen"], TURNS)


def test_a_template_may_show_calls_and_take_no_tools(tokenizer: Tokenizer) -> None:
    source = RESULTS.replace("{{ tools or '' }}", "")
    assert not ChatTemplate(source, {}).reads_tools
    assert ours(tokenizer, source, TURNS).endswith("[sun]")


def test_a_template_that_refuses_calls_says_why_itself(tokenizer: Tokenizer) -> None:
    source = "{% for m in messages %}{% if m.tool_calls %}{{ raise_exception('no calls') }}{% endif %}{% endfor %}"
    with refused("messages", "no calls"):
        ours(tokenizer, source, TURNS)


# In the manner of Llama 4's template (WHERE there is a system message) and Llama 3.2's (where there are no images):
# tools are written into the first user's message, of which one text is made, or elsewhere if a request asks for that.
IN_USER_MESSAGE = """\
{%- if not tools_in_user_message is defined %}{% set tools_in_user_message = true %}{% endif %}
{%- set ns = namespace(images=false) %}
{%- for m in messages %}{% for p in m.content %}{% if p.type == 'image' %}{% set ns.images = true %}{% endif %}
{%- endfor %}{% endfor %}
{%- set has_system = messages[0].role == 'system' %}
{%- if has_system %}{% set system = messages[0].content %}{% set messages = messages[1:] %}{{ system }}{% endif %}
{%- if WHERE and tools and not tools_in_user_message %}{{ tools | tojson }}{% endif %}
{%- if tools and tools_in_user_message %}
{%- set first = messages[0].content | trim %}{% set messages = messages[1:] %}{{ tools | tojson }}{{ first }}
{%- endif %}
{%- for m in messages %}<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}
{%- if p.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ p.text }}{% endif %}
{%- endfor %}{% endif %}{% endfor %}"""
WAYS = {
    "has_system": 'chat_template_kwargs: {"tools_in_user_message": false} and a system message keep them',
    "true": 'chat_template_kwargs: {"tools_in_user_message": false} keeps them',
    "not ns.images": 'with chat_template_kwargs: {"tools_in_user_message": false} it leaves out the tools instead',
}


def beside_tools(tokenizer: Tokenizer, source: str, messages: list[dict[str, Any]], **kwargs: Any) -> str:
    builder = make_builder(tokenizer, source)
    return builder.plain_text(render(builder, messages, tools=[TOOL], kwargs=kwargs))


@pytest.mark.parametrize("where", WAYS)
def test_an_image_that_is_dropped_beside_tools_is_refused_with_a_way_out(tokenizer: Tokenizer, where: str) -> None:
    source = IN_USER_MESSAGE.replace("WHERE", where)
    for content in ([text("Look: "), IMAGE], [IMAGE]):
        with refused("messages[0].content", "images", "leaves out beside tools in a first message", WAYS[where]):
            beside_tools(tokenizer, source, [user(content)])
    later = [user("Hi"), assistant("Ho"), user([text("Look: "), IMAGE])]
    assert beside_tools(tokenizer, source, later).endswith("Look: <|vision_start|><|image_pad|><|vision_end|>")


def test_the_way_out_is_one(tokenizer: Tokenizer) -> None:
    looks = user([text("Look: "), IMAGE])
    source = IN_USER_MESSAGE.replace("WHERE", "has_system")
    shown = beside_tools(tokenizer, source, [SYSTEM, looks], tools_in_user_message=False)
    assert shown.endswith("Look: <|vision_start|><|image_pad|><|vision_end|>")
    assert '"weather"' in shown
    with refused("messages[1].content", WAYS["true"]):
        beside_tools(tokenizer, source, [SYSTEM, looks])
    with refused("tools", "leaves the tools out of this conversation"):
        beside_tools(tokenizer, source, [looks], tools_in_user_message=False)
    source = IN_USER_MESSAGE.replace("WHERE", "not ns.images")
    with refused("tools", "leaves the tools out of this conversation"):
        beside_tools(tokenizer, source, [looks], tools_in_user_message=False)


def test_a_template_without_that_setting_has_images_later(tokenizer: Tokenizer) -> None:
    parts = "{% for p in m.content %}{{ p.text or '<|image_pad|>' }}{% endfor %}"
    content = f"{{% if m.content is string %}}{{{{ m.content }}}}{{% else %}}{parts}{{% endif %}}"
    first = "{% if tools and loop.first %}{{ m.content | trim }}{% else %}"
    source = f"{{{{ tools or '' }}}}{{% for m in messages %}}{first}{content}{{% endif %}}{{% endfor %}}"
    with refused("messages[0].content", "have them in a later message"):
        beside_tools(tokenizer, source, [user([text("Look: "), IMAGE])])


def test_texts_of_a_first_message_are_one_beside_tools(tokenizer: Tokenizer) -> None:
    source = IN_USER_MESSAGE.replace("WHERE", "true")
    shown = beside_tools(tokenizer, source, [user([text("one, "), text("two")]), assistant("ok"), user("three")])
    assert "one, two<|im_start|>assistant" in shown
    assert "'text'" not in shown


def test_llama_4s_own_template_is_read(tokenizer: Tokenizer) -> None:
    """That of transformers' processor, with tools, images, calls and results."""
    template = ChatTemplate(LLAMA4_TEMPLATE, {"bos_token": "<|begin_of_text|>"})
    assert template.reads_tools
    assert template.probe.form("user") == (True, True)
    assert template.probe.form("system") == (True, False), "of a list it shows the first part"
    assert template.probe.form("tool") == (True, False)
    assert template.probe.keeps_tool_turns(True)
    with refused("messages[0].content", WAYS["has_system"]):
        beside_tools(tokenizer, LLAMA4_TEMPLATE, [user([text("Look: "), IMAGE])])
    system = {"role": "system", "content": [text("Be brief. "), text("Be kind.")]}
    shown = beside_tools(
        tokenizer, LLAMA4_TEMPLATE, [system, user([text("Look: "), IMAGE])], tools_in_user_message=False
    )
    assert "Be brief. Be kind.<|eot|>" in shown
    assert "Look: <|image|><|eot|>" in shown
    assert '"weather"' in shown

"""Answers as the families' chat templates ask for them, and what each of them is."""

from __future__ import annotations

from tests.parsers.case import Case
from tests.parsers.hermes_cases import HERMES_CASES

_GLM45 = {
    "one call": Case(
        "glm45",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Beijing 北京</arg_value>\n<arg_key>days"
        "</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        made=[("get_weather", {"city": "Beijing 北京", "days": 3})],
    ),
    "a number that is a text": Case(
        "glm45",
        "<tool_call>get_weather\n<arg_key>zip</arg_key>\n<arg_value>08001</arg_value>\n<arg_key>city</arg_key>\n"
        "<arg_value>12</arg_value>\n</tool_call>",
        made=[("get_weather", {"zip": "08001", "city": "12"})],
    ),
    "without arguments, in one line": Case("glm45", "<tool_call>now</tool_call>", made=[("now", {})]),
    "without arguments, with line breaks": Case("glm45", "\n<tool_call>now\n</tool_call>\n", made=[("now", {})]),
    "several calls behind words": Case(
        "glm45",
        "I look.\n<tool_call>now\n</tool_call>\n<tool_call>ns.search-all\n<arg_key>query</arg_key>\n"
        '<arg_value>{"a": [1]}</arg_value>\n</tool_call>',
        "I look.",
        [("now", {}), ("ns.search-all", {"query": {"a": [1]}})],
    ),
    "values of unknown arguments": Case(
        "glm45",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>true</arg_value>\n<arg_key>b</arg_key>\n<arg_value>two\n"
        "lines {</arg_value>\n</tool_call>",
        made=[("f", {"a": True, "b": "two\nlines {"})],
    ),
    "alternatives in the schema": Case(
        "glm45",
        "<tool_call>pick<arg_key>one</arg_key><arg_value>12</arg_value><arg_key>two</arg_key><arg_value>null</arg_value>"
        "<arg_key>three</arg_key><arg_value>1</arg_value><arg_key>four</arg_key><arg_value>7</arg_value></tool_call>",
        made=[("pick", {"one": "12", "two": None, "three": "1", "four": 7})],
    ),
    "types behind references": Case(
        "glm45",
        "<tool_call>order"
        + "".join(
            f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>"
            for key, value in (
                ("size", 1),
                ("path", 2),
                ("maybe", 1),
                ("loop", 3),
                ("self", 4),
                ("away", 5),
                ("fixed", 5),
                ("count", 5),
                ("all", 7),
                ("both", 8),
                ("some", 1),
                ("note", 9),
                ("other", 10),
            )
        )
        + "</tool_call>",
        made=[
            (
                "order",
                {
                    "size": "1",
                    "path": "2",
                    "maybe": "1",
                    "loop": "3",
                    "self": 4,
                    "away": 5,
                    "fixed": "5",
                    "count": 5,
                    "all": "7",
                    "both": 8,
                    "some": 1,
                    "note": "9",
                    "other": 10,
                },
            )
        ],
    ),
    "types of arguments without names": Case(
        "glm45", "<tool_call>tag<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>", made=[("tag", {"a": "1"})]
    ),
    "words before the closing tag": Case(
        "glm45",
        "<tool_call>now<arg_key>a</arg_key><arg_value>1</arg_value> ok</tool_call> x",
        "x",
        [("now", {"a": 1})],
    ),
    "an empty text": Case(
        "glm45",
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value></arg_value></tool_call>",
        made=[("get_weather", {"city": ""})],
    ),
    "a name cut short": Case("glm45", "<tool_call>get_wea", "<tool_call>get_wea"),
    "no value": Case(
        "glm45", "<tool_call>f<arg_key>a</arg_key></tool_call>!", "<tool_call>f<arg_key>a</arg_key></tool_call>!"
    ),
    "words between arguments": Case(
        "glm45",
        "<tool_call>f and <arg_key>a</arg_key></tool_call>",
        "<tool_call>f and <arg_key>a</arg_key></tool_call>",
    ),
    "opened twice": Case("glm45", "<tool_call>f<tool_call>now</tool_call>", "<tool_call>f", [("now", {})]),
    "words about a tag": Case("glm45", "Use <tool_call> and </tool_call>.", "Use <tool_call> and </tool_call>."),
}

_LLAMA3 = {
    "one call": Case(
        "llama3_json",
        '{"name": "get_weather", "parameters": {"city": "x"}}',
        made=[("get_weather", {"city": "x"})],
    ),
    "behind a tag, with a type": Case(
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "now", "parameters": {}}',
        made=[("now", {})],
    ),
    "several": Case(
        "llama3_json",
        '{"name": "now", "parameters": {}}; {"name": "get_weather", "arguments": {"city": "}"}}\n',
        made=[("now", {}), ("get_weather", {"city": "}"})],
    ),
    "an answer in JSON": Case("llama3_json", '\n{"name": "Bob", "age": {}} ', '\n{"name": "Bob", "age": {}} '),
    "JSON within words": Case("llama3_json", 'So: {"name": "now"}', 'So: {"name": "now"}'),
    "broken": Case("llama3_json", '{"name": now}', '{"name": now}'),
    "cut short": Case("llama3_json", '{"name": "now", "par', '{"name": "now", "par'),
    "code behind a tag": Case("llama3_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)"),
}

_LLAMA4 = {
    "one call": Case(
        "llama4_pythonic",
        '[get_weather(city="Zürich", days=3)]',
        made=[("get_weather", {"city": "Zürich", "days": 3})],
    ),
    "several, one without arguments": Case(
        "llama4_pythonic",
        "[now(), get_weather(city='it\\'s', days=-1)]",
        made=[("now", {}), ("get_weather", {"city": "it's", "days": -1})],
    ),
    "within tags": Case("llama4_pythonic", "<|python_start|>[now()]<|python_end|>", made=[("now", {})]),
    "all kinds of values": Case(
        "llama4_pythonic",
        '[now(a=[1, 2.5e-1, (True, None)], b={"k": {"x": false}}, c="a" \'b\', d="[(\\u00e9\\n", e=[],)]',
        made=[("now", {"a": [1, 0.25, [True, None]], "b": {"k": {"x": False}}, "c": "ab", "d": "[(é\n", "e": []})],
    ),
    "names as tools may have them": Case(
        "llama4_pythonic",
        "[ns.search-all(query={}), 2fa-check (user-id=-1, b=2)]",
        made=[("ns.search-all", {"query": {}}), ("2fa-check", {"user-id": -1, "b": 2})],
    ),
    "two lists within tags": Case(
        "llama4_pythonic", "<|python_start|>[now()]\n[now()];<|python_end|>x", "x", [("now", {})] * 2
    ),
    "a longer name than tools have": Case("llama4_pythonic", f"[{'a' * 65}(a=1)]", f"[{'a' * 65}(a=1)]"),
    "a link": Case("llama4_pythonic", "[docs](http://a/b) and [now()]", "[docs](http://a/b) and [now()]"),
    "a list": Case("llama4_pythonic", "[1, 2]", "[1, 2]"),
    "an unknown function": Case("llama4_pythonic", "[eval(a=1)] ", "[eval(a=1)] "),
    "a positional argument": Case("llama4_pythonic", "[now(1)]", "[now(1)]"),
    "an expression": Case("llama4_pythonic", "[now(a=1+1)]", "[now(a=1+1)]"),
    "a call within a call": Case("llama4_pythonic", "[now(a=now())]", "[now(a=now())]"),
    "an infinite number": Case("llama4_pythonic", "[now(a=1e999)]", "[now(a=1e999)]"),
    "cut short": Case("llama4_pythonic", '[get_weather(city="Zü', '[get_weather(city="Zü'),
    "too deep": Case("llama4_pythonic", "[now(a=" + "[" * 50, "[now(a=" + "[" * 50),
}

_LLAMA4_JSON = {
    "as the template asks for it": Case(
        "llama4_json",
        '{"name": "get_weather", "parameters": {"city": "Zürich", "days": 3}}',
        made=[("get_weather", {"city": "Zürich", "days": 3})],
    ),
    "within tags": Case(
        "llama4_json",
        '<|python_start|>{"name": "now", "parameters": {}}<|python_end|>',
        made=[("now", {})],
    ),
    "behind empty tags, as the template writes earlier calls": Case(
        "llama4_json",
        '<|python_start|><|python_end|>{"name": "now", "parameters": {}}',
        made=[("now", {})],
    ),
    "behind words in tags": Case(
        "llama4_json",
        '<|python_start|>Let me look.<|python_end|>{"name": "now", "parameters": {}}{"name": "get_weather", '
        '"parameters": {"city": "<|"}}',
        "Let me look.",
        [("now", {}), ("get_weather", {"city": "<|"})],
    ),
    "several within tags, and words behind them": Case(
        "llama4_json",
        '<|python_start|>{"name": "now", "parameters": {}}\n{"name": "now", "parameters": {"a": 1}};\n'
        "<|python_end|>\nOk.",
        "Ok.",
        [("now", {}), ("now", {"a": 1})],
    ),
    "several, parted in all ways": Case(
        "llama4_json",
        '{"name": "now"}{"name": "now", "arguments": {}}\n{"name": "now"}; {"name": "now"}, {"name": "now"}',
        made=[("now", {})] * 5,
    ),
    "a list of objects": Case(
        "llama4_json",
        '[{"name": "now", "parameters": {}}, {"name": "get_weather", "parameters": {"city": "it\'s [("}}]',
        made=[("now", {}), ("get_weather", {"city": "it's [("})],
    ),
    "a list of objects within tags": Case(
        "llama4_json", '<|python_start|>[ {"name": "now"} ]<|python_end|>', made=[("now", {})]
    ),
    "both notations": Case(
        "llama4_json",
        '<|python_start|>[now()]<|python_end|>\n{"name": "now", "parameters": {}}',
        made=[("now", {})] * 2,
    ),
    "with a type, and the arguments first": Case(
        "llama4_json",
        '{"type": "function", "name": "now", "parameters": {}}{"parameters": {"a": 1}, "name": "now"}',
        made=[("now", {}), ("now", {"a": 1})],
    ),
    "an answer in JSON": Case("llama4_json", '\n{"name": "Bob", "age": {}} ', '\n{"name": "Bob", "age": {}} '),
    "a list in JSON": Case("llama4_json", '[{"name": "Bob"}]', '[{"name": "Bob"}]'),
    "a list with something else": Case("llama4_json", '[{"name": "now"}, 5]', '[{"name": "now"}, 5]'),
    "a list that is no JSON": Case("llama4_json", '[{"name": now}]', '[{"name": now}]'),
    "JSON within words": Case("llama4_json", 'So: {"name": "now"}', 'So: {"name": "now"}'),
    "cut short": Case("llama4_json", '{"name": "now", "par', '{"name": "now", "par'),
}
# The tags are no text, whatever is in them.
_LLAMA4_TAGS = {
    "code": Case("llama4_json", "See <|python_start|>print(1)<|python_end|> there", "See print(1) there"),
    "cut short": Case("llama4_json", '<|python_start|>{"name": "now", "par', '{"name": "now", "par'),
    "a tag that closes nothing": Case("llama4_json", "<|python_end|>Hi <|python_end|>", "Hi"),
    "much space": Case("llama4_json", "<|python_start|>" + " " * 70 + "[now()]", " " * 70 + "[now()]"),
}

_REASONING = {
    "written by the model": Case(
        None, "\n<think>\nHm, well.\n</think>\n\nYes.\n", "Yes.\n", reasoning="Hm, well.", thinks=True
    ),
    "begun by the template": Case(None, "Hm.\n</think>\n\nYes.", "Yes.", reasoning="Hm.", thinks=True, is_open=True),
    "begun by both": Case(None, "<think>Hm.</think>Yes.", "Yes.", reasoning="Hm.", thinks=True, is_open=True),
    "none": Case(None, " Yes <think> is a tag. \n", " Yes <think> is a tag. \n", thinks=True),
    "empty": Case(None, "<think></think>\nYes.", "Yes.", thinks=True),
    "closed once more": Case(None, "</think>\n\nYes.", "Yes.", thinks=True),
    "cut short": Case(None, "Hm, let me", reasoning="Hm, let me", thinks=True, is_open=True),
    "a closing tag in the answer": Case(
        None, "a</think>b</think>c", "b</think>c", reasoning="a", thinks=True, is_open=True
    ),
    "then a call": Case(
        "hermes",
        'Hm.\n</think>\n\n<tool_call>\n{"name": "now"}\n</tool_call>',
        reasoning="Hm.",
        made=[("now", {})],
        thinks=True,
        is_open=True,
    ),
    "a call opened before it closes": Case(
        "hermes",
        'I call.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n</think>\n',
        reasoning="I call.",
        made=[("now", {})],
        thinks=True,
        is_open=True,
    ),
    "a GLM call opened before it closes": Case(
        "glm45",
        "\n<think>I call.\n<tool_call>now\n</tool_call>",
        reasoning="I call.",
        made=[("now", {})],
        thinks=True,
    ),
    "reasoning that goes on behind a call": Case(
        "hermes",
        '<think>x<tool_call>{"name": "now", "arguments": {}}</tool_call>more</think>ans',
        "ans",
        [("now", {})],
        reasoning="xmore",
        thinks=True,
    ),
    "reasoning around two calls": Case(
        "hermes",
        'Hm. <tool_call>{"name": "now"}}</tool_call>\nOr <tool_call>{"name": "now"}</tool_call>\n</think>\n\nYes. \n'
        '<tool_call>{"name": "now"}</tool_call>',
        "Yes.",
        [("now", {})] * 3,
        reasoning="Hm. Or",
        thinks=True,
        is_open=True,
    ),
    "a call without its closing tag before the reasoning's end": Case(
        "hermes",
        'Hm.<tool_call>{"name": "now"} so</think>Yes.',
        "Yes.",
        [("now", {})],
        reasoning="Hm. so",
        thinks=True,
        is_open=True,
    ),
    "reasoning that goes on behind a GLM call": Case(
        "glm45",
        "<think>x\n<tool_call>now\n</tool_call>\nmore</think>\nans",
        "ans",
        [("now", {})],
        reasoning="x\nmore",
        thinks=True,
    ),
    "reasoning is begun again behind a call": Case(
        "hermes",
        'x<tool_call>{"name": "now"}</tool_call><think>y</think>ans',
        "ans",
        [("now", {})],
        reasoning="xy",
        thinks=True,
        is_open=True,
    ),
    "much space before an answer": Case(None, "\n" * 300 + "x \n", "\n" * 300 + "x \n", thinks=True),
    "nothing but much space": Case(None, "\n" * 300, "\n" * 300, thinks=True),
    "reasoning about a tag": Case(
        "hermes",
        "I could write <tool_call> here.</think>No.",
        "No.",
        reasoning="I could write <tool_call> here.",
        thinks=True,
        is_open=True,
    ),
    "a bare call behind it": Case(
        "llama3_json",
        '<think>x</think>\n{"name": "now", "parameters": {}}',
        reasoning="x",
        made=[("now", {})],
        thinks=True,
    ),
}

CASES = {
    f"{kind}: {name}": case
    for kind, cases in {
        "hermes": HERMES_CASES,
        "glm45": _GLM45,
        "llama3": _LLAMA3,
        "llama4": _LLAMA4,
        "llama4 in JSON": _LLAMA4_JSON,
        "llama4 in tags": _LLAMA4_TAGS,
        "reasoning": _REASONING,
    }.items()
    for name, case in cases.items()
}

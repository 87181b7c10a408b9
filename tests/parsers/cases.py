"""Answers as the families' chat templates ask for them, and what each of them is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TOOLS: dict[str, dict[str, Any]] = {
    "get_weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "zip": {"type": "string"}},
    },
    "now": {"type": "object", "properties": {}},
    "pick": {
        "properties": {
            "one": {"type": ["string", "null"]},
            "two": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "three": {"enum": ["1", "2"]},
            "four": {"oneOf": [{"type": "integer"}, {"type": "null"}]},
        }
    },
    "ns.search-all": {"type": "object", "properties": {"query": {"type": "object"}}},
}


@dataclass(frozen=True)
class Case:
    """One answer.

    Attributes:
        calls: the format of its calls.
        text: what the model says.
        content: what of it is for the user.
        made: name and arguments of each call.
        reasoning: what of it is reasoning.
        thinks: whether the model has reasoning.
        is_open: whether the prompt has begun it.
    """

    calls: str | None
    text: str
    content: str = ""
    made: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    reasoning: str = ""
    thinks: bool = False
    is_open: bool = False


_HERMES = {
    "one call": Case(
        "hermes",
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Zürich", "days": 3}}\n</tool_call>',
        made=[("get_weather", {"city": "Zürich", "days": 3})],
    ),
    "words before it": Case(
        "hermes",
        'Let me look.\n\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "Let me look.",
        [("now", {})],
    ),
    "two calls and words behind": Case(
        "hermes",
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "get_weather", '
        '"arguments": {"city": "a"}}\n</tool_call>\nDone. ',
        "Done. ",
        [("now", {}), ("get_weather", {"city": "a"})],
    ),
    "no arguments at all": Case("hermes", '<tool_call>{"name": "now"}</tool_call>', made=[("now", {})]),
    "null for arguments": Case(
        "hermes", '<tool_call>{"name":"now","arguments":null}</tool_call>', made=[("now", {})]
    ),
    "arguments first": Case(
        "hermes",
        '<tool_call>{"arguments": {"city": "x"}, "name": "get_weather"}</tool_call>',
        made=[("get_weather", {"city": "x"})],
    ),
    "arguments as a string": Case(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": "{\\"city\\": \\"x\\"}"}</tool_call>',
        made=[("get_weather", {"city": "x"})],
    ),
    "tags, braces and quotes in a string": Case(
        "hermes",
        '<tool_call>{"name": "get_weather", "arguments": {"city": "}</tool_call>\\" {[ \\\\"}}</tool_call>',
        made=[("get_weather", {"city": '}</tool_call>" {[ \\'})],
    ),
    "nested values": Case(
        "hermes",
        '<tool_call>{"name": "ns.search-all", "arguments": {"query": {"a": [1, {"b": []}], "c": null}}}</tool_call>',
        made=[("ns.search-all", {"query": {"a": [1, {"b": []}], "c": None}})],
    ),
    "a tool that nobody offered": Case(
        "hermes", '<tool_call>{"name": "other", "arguments": {}}</tool_call>', made=[("other", {})]
    ),
    "the closing tag is missing": Case("hermes", '<tool_call>{"name": "now", "arguments": {}}', made=[("now", {})]),
    "not JSON": Case("hermes", "<tool_call>now()</tool_call> ", "<tool_call>now()</tool_call> "),
    "broken JSON, then a call": Case(
        "hermes",
        '<tool_call>{"name": now}</tool_call><tool_call>{"name": "now"}</tool_call>',
        '<tool_call>{"name": now}</tool_call>',
        [("now", {})],
    ),
    "no name": Case("hermes", '<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>'),
    "a list for arguments": Case(
        "hermes",
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "now", "arguments": [1]}</tool_call>',
    ),
    "cut short": Case("hermes", 'Hm <tool_call>\n{"name": "get_wea', 'Hm <tool_call>\n{"name": "get_wea'),
    "half a tag at the end": Case("hermes", "a <tool_c", "a <tool_c"),
    "too deep": Case("hermes", "<tool_call>" + "{" * 80, "<tool_call>" + "{" * 80),
    "words about a tag": Case("hermes", " Write <tool_call> first.\n", " Write <tool_call> first.\n"),
}

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
        "hermes": _HERMES,
        "glm45": _GLM45,
        "llama3": _LLAMA3,
        "llama4": _LLAMA4,
        "reasoning": _REASONING,
    }.items()
    for name, case in cases.items()
}

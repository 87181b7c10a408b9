"""Answers as Qwen's chat templates ask for them, and what each of them is."""

from __future__ import annotations

from tests.parsers.case import Case

HERMES_CASES = {
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
    "text on both sides": Case(
        "hermes", 'Let me see. <tool_call>{"name": "now"}</tool_call> Done', "Let me see. Done", [("now", {})]
    ),
    "space behind it alone": Case(
        "hermes", 'Let me see.<tool_call>{"name": "now"}</tool_call>\n\nDone', "Let me see.\n\nDone", [("now", {})]
    ),
    "text around two calls": Case(
        "hermes",
        ' A\n<tool_call>{"name": "now"}</tool_call>\n<tool_call>{"name": "now"}</tool_call>\n\nB<tool_call>'
        '{"name": "now"}</tool_call> C \n',
        " A\nB C \n",
        [("now", {})] * 3,
    ),
    "two objects in one tag": Case(
        "hermes",
        '<tool_call>{"name": "now", "arguments": {}}\n{"name": "get_weather", "arguments": {"city": "</tool_call>"}}'
        "</tool_call> Done",
        "Done",
        [("now", {}), ("get_weather", {"city": "</tool_call>"})],
    ),
    "three objects and commas": Case(
        "hermes",
        '<tool_call>{"name": "now"}, {"arguments": {}, "name": "now"},\n{"name": "now"}\n</tool_call>',
        made=[("now", {})] * 3,
    ),
    "two objects, and the closing tag is missing": Case(
        "hermes", '<tool_call>{"name": "now"}\n{"name": "now"} Done', "Done", [("now", {})] * 2
    ),
    "one brace too many": Case(
        "hermes", '<tool_call>{"name": "now", "arguments": {}}}</tool_call>x', "x", [("now", {})]
    ),
    "one brace too many, and a call": Case(
        "hermes",
        '<tool_call>{"name": "now", "arguments": {}}}\n</tool_call>\n<tool_call>{"name": "now"}</tool_call>',
        made=[("now", {})] * 2,
    ),
    "words before the closing tag": Case(
        "hermes", '<tool_call>{"name": "now"} ok?\n</tool_call>x', "x", [("now", {})]
    ),
    "another object before the closing tag": Case(
        "hermes", '<tool_call>{"name": "now"} {"id": 7}]</tool_call>x', "x", [("now", {})]
    ),
    "half an object before the closing tag": Case(
        "hermes", '<tool_call>{"name": "now"} {"name": </tool_call>x', "x", [("now", {})]
    ),
    "half an object at the end": Case(
        "hermes", '<tool_call>{"name": "now"}\n{"name": "n', '{"name": "n', [("now", {})]
    ),
    "a closing tag that comes too late": Case(
        "hermes",
        '<tool_call>{"name": "now"} ' + "ok " * 100 + "</tool_call>",
        "ok " * 100 + "</tool_call>",
        [("now", {})],
    ),
    "the next tag before the closing one": Case(
        "hermes",
        '<tool_call>{"name": "now"} and <tool_call>{"name": "now"}</tool_call>',
        "and",
        [("now", {})] * 2,
    ),
    "an object that the closing tag cuts": Case(
        "hermes", '<tool_call>{"name": now</tool_call> ', '<tool_call>{"name": now</tool_call> '
    ),
    "words about a tag": Case("hermes", " Write <tool_call> first.\n", " Write <tool_call> first.\n"),
}

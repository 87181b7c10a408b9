"""Every answer is read alike, however its text is cut."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.parsers.answer import AnswerParser
from chiasm.parsers.events import CallArguments, CallStart, ContentText, Event, ReasoningText
from chiasm.parsers.forced import ForcedCalls
from chiasm.parsers.reasoning import THINK
from chiasm.parsers.registry import CALL_FORMATS
from tests.parsers.case import TOOLS, Case
from tests.parsers.cases import CASES

# Where calls and reasoning meet, and what breaks them.
_FRAGMENTS = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<|python_tag|>", "<|python_start|>", "<|python_end|>", '{"name": "now", "arguments": {}}', '{"name": "now"',
    '{"name": "now", "arguments": {"a": ', '"parameters": ', '"b"}', "}}", "<tool_call>now<arg_key>a</arg_key>",
    "<arg_value>1</arg_value>", "<arg_key>b</arg_key><arg_value>2</arg_value>",
    '{"name": "now"}', "ok " * 90, " " * 260,
    '{"name": "now", "parameters": {}}', '[{"name": "now"}',
    "[now()]", "[now(", "now", "{", "}", "[", "]", "(", ")", '"', "'", "\\", ";", ",", " ", "\n", "é", "a=1", "|>",
)  # fmt: skip


def parser(case: Case) -> AnswerParser:
    return AnswerParser(
        reasoning=THINK if case.thinks else None,
        is_reasoning_open=case.is_open,
        calls=CALL_FORMATS[case.calls] if case.calls else None,
        tools=TOOLS,
    )


def read(parser: AnswerParser, pieces: Sequence[str]) -> list[Event]:
    """The events with texts of one kind behind one another put together."""
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    joined: list[Any] = []
    for event in events:
        assert event[-1], "an event says something"
        if joined and type(joined[-1]) is type(event) and not isinstance(event, CallStart):
            joined[-1] = joined[-1]._replace(text=joined[-1].text + event.text)  # type: ignore[union-attr]
        else:
            joined.append(event)
    return joined


def in_steps(text: str, size: int) -> list[str]:
    return [text[i : i + size] for i in range(0, len(text), size)]


@pytest.mark.parametrize("size", [1, 2, 3, 8, 10_000])
@pytest.mark.parametrize("name", CASES)
def test_what_an_answer_is(name: str, size: int) -> None:
    case = CASES[name]
    events = read(parser(case), in_steps(case.text, size))
    assert "".join(e.text for e in events if isinstance(e, ContentText)) == case.content
    assert "".join(e.text for e in events if isinstance(e, ReasoningText)) == case.reasoning
    starts = [e for e in events if isinstance(e, CallStart)]
    arguments = [e for e in events if isinstance(e, CallArguments)]
    assert [e.number for e in starts] == [e.number for e in arguments] == list(range(len(case.made)))
    made = [(a.name, json.loads(b.text)) for a, b in zip(starts, arguments, strict=True)]
    assert made == case.made


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("llama4")])
def test_both_parsers_of_llama_4_read_alike(name: str) -> None:
    """Which of them is given says only how a grammar makes calls."""
    case = CASES[name]
    ways = [read(parser(replace(case, calls=calls)), [case.text]) for calls in ("llama4_json", "llama4_pythonic")]
    assert ways[0] == ways[1]


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_cuts_change_nothing(data: st.DataObject) -> None:
    fragments = st.lists(st.sampled_from(_FRAGMENTS), max_size=12).map("".join)
    text = data.draw(st.one_of(fragments, st.sampled_from([case.text for case in CASES.values()])))
    thinks = data.draw(st.booleans())
    case = Case(data.draw(st.sampled_from([None, *CALL_FORMATS])), text, thinks=thinks,
                is_open=thinks and data.draw(st.booleans()))  # fmt: skip
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=20)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(parser(case), pieces) == read(parser(case), [text])


@settings(max_examples=100, deadline=None)
@given(text=st.lists(st.sampled_from(_FRAGMENTS), max_size=12).map("".join))
def test_without_reasoning_and_calls_an_answer_stays_as_it_is(text: str) -> None:
    content = "".join(e.text for e in read(AnswerParser(), in_steps(text, 3)) if isinstance(e, ContentText))
    assert content == text


@pytest.mark.parametrize("calls", [name for name, form in CALL_FORMATS.items() if form.frame])
def test_calls_that_a_grammar_makes_in_a_models_own_way_are_read(calls: str) -> None:
    frame = CALL_FORMATS[calls].frame  # type: ignore[index]
    assert frame
    call = f'{frame.before}{{"name": "now", "{frame.arguments}": {{"a": 1}}}}{frame.after}'
    events = read(parser(Case(calls, "")), in_steps(call + frame.between + call, 3))
    made = CallArguments(0, '{"a": 1}')
    assert events == [CallStart(0, "now"), made, CallStart(1, "now"), made._replace(number=1)]


UNTOUCHED = [name for name, case in CASES.items() if not (case.made or case.thinks or "in tags" in name)]


@pytest.mark.parametrize("name", UNTOUCHED)
def test_nothing_is_lost_where_nothing_is_a_call(name: str) -> None:
    case = CASES[name]
    assert case.content == case.text


ATTACKS = {
    "hermes": [
        '<tool_call>{"' * 20_000,
        "<tool_call>{" * 20_000,
        "<tool_cal" * 30_000,
        '<tool_call>{"a": "' + "\\" * 200_000,
        '<tool_call>{"a": "' + "a" * 200_000,
        '<tool_call>{"name": "now", "arguments": {}' + " " * 200_000,
        '<tool_call>{"name": "now"}' * 4000,
        '<tool_call>{"name": "now"}' + '{"' * 100_000,
        '<tool_call>{"name": "now"}' + '{"name": "now"}' * 4000,
        '<tool_call>{"name": "now"}' + "<tool_cal" * 30_000,
    ],
    "glm45": [
        "<tool_call>" + " " * 200_000,
        "<tool_call>f<arg_key>a</arg_key>" + " " * 200_000,
        "<tool_call>f<arg_key>a</arg_key><arg_value>" + "</arg_valu" * 20_000,
        "<tool_call>f" * 20_000,
        "<tool_call>f<arg_key>" * 10_000,
        "<tool_call>" + "f" * 200_000,
        "<tool_call>f<arg_key>" + "a" * 200_000,
        "<tool_call>f<arg_key>a</arg_key><arg_value>" + "a" * 200_000,
        "<tool_call>f" + "<arg_key>a</arg_key><arg_value>1</arg_value>" * 10_000,
    ],
    "llama3_json": ["{" * 200_000, '{"' * 100_000, ";{" * 100_000],
    "llama4_json": [
        "{" * 200_000,
        '{"' * 100_000,
        "[{" * 100_000,
        '[{"a": "' + "a" * 200_000,
        '[{"name": "now"}' + ', {"name": "now"}' * 20_000,
        '{"name": "now"}' * 10_000,
        "<|python_start|>" * 20_000,
        "<|python_start|><|python_end|>" * 10_000,
        "<|python_end|>" * 20_000 + "{" * 1000,
        "<|python_end|>[" * 10_000,
        ";{" * 100_000,
    ],
    "llama4_pythonic": [
        "[" * 200_000,
        "[" + "a" * 200_000,
        "[" + " " * 200_000,
        "<|python_start|>" + " " * 200_000,
        "[a" + " " * 200_000,
        "[now(a='" + "a" * 200_000,
        "[now(a=" + "-" * 200_000 + "1)]",
        "[now(a=" + "1" * 100_000 + "x)]",
        "[now(a=" + "(" * 100_000,
        "[now(" + "a=1," * 30_000 + ")]",
        "[now(a=" + '"x" ' * 50_000 + ")]",
    ],
}


@pytest.mark.parametrize("size", [8, 1_000_000])
@pytest.mark.parametrize(("name", "index"), [(name, i) for name, texts in ATTACKS.items() for i in range(len(texts))])
def test_hostile_text_takes_linear_time(name: str, index: int, size: int) -> None:
    """Threat: quadratic time (CVE-2025-48887, GHSA-j828-28rj-hfhp)."""
    text = ATTACKS[name][index]
    start = time.process_time()
    read(parser(Case(name, text, thinks=True)), in_steps(text, size))
    assert time.process_time() - start < 5, "a quadratic reader takes minutes"


def steps(calls: str, *pieces: str) -> list[list[Event]]:
    """The events of each piece, and of the end."""
    made = parser(Case(calls, ""))
    return [*map(made.feed, pieces), made.finish()]


@pytest.mark.parametrize(
    ("calls", "opener"),
    [("hermes", "<tool_call>\n"), ("llama3_json", ""), ("llama4_json", ""), ("llama4_json", "<|python_start|>")],
)
def test_arguments_in_json_go_out_as_they_come(calls: str, opener: str) -> None:
    assert steps(calls, opener + '{"name": "now", "arguments": ', '{"a"', ": [1, ", '"}"]', "}", "}") == [
        [],
        [CallStart(0, "now"), CallArguments(0, '{"a"')],
        [CallArguments(0, ": [1, ")],
        [CallArguments(0, '"}"]')],
        [CallArguments(0, "}")],
        [],
        [],
    ]


def test_arguments_in_tags_go_out_one_by_one() -> None:
    pairs = [f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n" for key, value in ("a1", "b2")]
    assert steps("glm45", "<tool_call>now\n", pairs[0], pairs[1][:9], pairs[1][9:], "</tool_call>") == [
        [],
        [CallStart(0, "now"), CallArguments(0, '{"a": 1')],
        [],
        [CallArguments(0, ', "b": 2')],
        [CallArguments(0, "}")],
        [],
    ]


@pytest.mark.parametrize(
    ("calls", "text", "arguments", "content"),
    [
        # At the limit of tokens: what has gone out can't be taken back, and isn't made to look whole.
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": "b', '{"a": "b', ""),
        ("llama3_json", '{"name": "now", "parameters": {"a": [', '{"a": [', ""),
        ("glm45", "<tool_call>now<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b", '{"a": 1', ""),
        # What isn't valid is for the client to see.
        ("hermes", '<tool_call>{"name": "now", "arguments": {\'a\': 1}}</tool_call>', "{'a': 1}", ""),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}\n</tool_call>ok', "{}", "ok"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}, "id": 7}</tool_call>ok', "{}", "ok"),
        ("hermes", '<tool_call>{"name": "now", "arguments": {}} ok', "{}", "ok"),
        (
            "glm45",
            "<tool_call>now<arg_key>a</arg_key><arg_value>1</arg_value> and more</tool_call>",
            '{"a": 1}',
            "",
        ),
        ("hermes", '<tool_call>{"name": "now", "arguments": {"a": 1</tool_call>ok', '{"a": 1', "ok"),
        (
            "glm45",
            "<tool_call>now<arg_key>a</arg_key><arg_value>1</arg_value><arg_key>b</arg_key>2",
            '{"a": 1}',
            "<arg_key>b</arg_key>2",
        ),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_calls_that_break_off(calls: str, text: str, arguments: str, content: str, size: int) -> None:
    events: list[Event] = [CallStart(0, "now"), CallArguments(0, arguments)]
    assert read(parser(Case(calls, text)), in_steps(text, size)) == events + [ContentText(content)] * bool(content)


def test_only_the_end_of_a_prompt_tells_whether_reasoning_is_open() -> None:
    third_turn = "<think>a</think><tool_call>...</tool_call><|im_end|>tool: <think> is what I found"
    assert not THINK.is_open_after(third_turn + "<|im_start|>assistant\n")
    assert THINK.is_open_after(third_turn + "<|im_start|>assistant\n<think>\n")
    assert not THINK.is_open_after("assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("behind_the_head", "texts", "is_open"),
    [
        ("The tag", ["The tag"], False),
        ("<think>\nI was", ["<think>\nI was"], True),
        ("<think>\nI was", ["I was"], True),  # the template has begun it
        ("<think>\nI was", ["<think>I was\n"], True),  # the template has parted it
        ("<think>\nI", ["<think>", "I"], True),
        ("<think>\nI was</think>\nYes", ["<think>\nI was</think>\nYes"], False),
        ("<think>\nI was\n</think>\n\nYes", ["<think>I was</think>Yes"], False),
        ("<think>\n\n</think>\n\nYes", ["  Yes\n"], False),
        ("The tag <think> is", ["The tag <think> is"], False),  # a mark within a text is no mark
        ("<think>", [], False),  # a user's, or a tool's
        ("Yes<|im_end|>\n", ["Yes"], False),
    ],
)
def test_where_a_prompt_ends_with_a_message_that_message_alone_tells(
    behind_the_head: str, texts: list[str], is_open: bool
) -> None:
    for question in ("Hi", "What does <think> mean?", "<think>", "</think>"):
        prompt = f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{behind_the_head}"
        assert THINK.is_open_after(prompt, texts) == is_open


FORCED = '[{"name": "get_weather", "arguments": {"city": "}]"}}, {"name": "now", "arguments": {}}]'


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_forced_calls_go_out_as_they_come(size: int) -> None:
    made = AnswerParser(reasoning=THINK, is_reasoning_open=True, forced=ForcedCalls())
    events = read(made, in_steps("Hm.</think>\n" + FORCED, size))
    assert events == [
        ReasoningText("Hm."),
        CallStart(0, "get_weather"),
        CallArguments(0, '{"city": "}]"}'),
        CallStart(1, "now"),
        CallArguments(1, "{}"),
    ]


def test_a_forced_calls_arguments_do_not_wait_for_their_end() -> None:
    made = AnswerParser(forced=ForcedCalls())
    assert made.feed('[{"name": "now", "arguments": {"a": 1') == [CallStart(0, "now"), CallArguments(0, '{"a": 1')]
    assert made.feed("2") == [CallArguments(0, "2")]
    assert made.finish() == []


@pytest.mark.parametrize("size", [1, 1000])
def test_wherever_forced_calls_are_cut_what_is_around_them_is_not_shown(size: int) -> None:
    for end in range(len(FORCED)):
        events = read(AnswerParser(forced=ForcedCalls()), in_steps(FORCED[:end], size))
        assert all(isinstance(event, CallStart | CallArguments) for event in events), FORCED[:end]

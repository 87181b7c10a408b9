"""Calls of tools and reasoning as OpenAI's client sees them, and what of tools reaches the engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chiasm.config.server import ServerConfig
from chiasm.errors import UserError
from chiasm.schema.chat import AddedToken
from chiasm.schema.structured import Thinking
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer, client_of
from tests.server.test_chat import events_of

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}
ASK: list[Any] = [{"role": "user", "content": "How is it in Rome?"}]
CALLS = (
    'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Rome"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now"}\n</tool_call>'
)


@pytest.fixture
def tool_engine(tool_server: RunningServer) -> FakeEngine:
    return tool_server.engine


@pytest.fixture
def tool_client(tool_server: RunningServer) -> Iterator[openai.OpenAI]:
    with client_of(tool_server) as client:
        yield client


def say(engine: FakeEngine, text: str, size: int) -> None:
    """Have the engine answer with a text, cut into words of so many characters."""
    engine.words = tuple(text[i : i + size] for i in range(0, len(text), size))


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_calls_in_a_whole_answer(tool_client: openai.OpenAI, tool_engine: FakeEngine, size: int) -> None:
    say(tool_engine, CALLS, size)
    answer = tool_client.chat.completions.create(model="org/fake-vl", messages=ASK, tools=[WEATHER, NOW])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    calls: Any = choice.message.tool_calls
    assert [(c.type, c.function.name, json.loads(c.function.arguments)) for c in calls] == [
        ("function", "get_weather", {"city": "Rome"}),
        ("function", "now", {}),
    ]
    assert len({call.id for call in calls}) == 2
    assert all(call.id.startswith("call_") for call in calls)


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_calls_in_a_stream(tool_client: openai.OpenAI, tool_engine: FakeEngine, size: int) -> None:
    say(tool_engine, CALLS, size)
    with tool_client.chat.completions.stream(model="org/fake-vl", messages=ASK, tools=[WEATHER, NOW]) as stream:
        chunks = [event.chunk for event in stream if event.type == "chunk"]
        final = stream.get_final_completion().choices[0]
    assert (final.finish_reason, final.message.content) == ("tool_calls", "I look.")
    made = [(call.function.name, json.loads(call.function.arguments)) for call in final.message.tool_calls or []]
    assert made == [("get_weather", {"city": "Rome"}), ("now", {})]
    deltas = [delta for chunk in chunks for delta in chunk.choices[0].delta.tool_calls or []]
    first: dict[int, Any] = {}
    for delta in deltas:
        if delta.index not in first:
            first[delta.index] = delta
            assert delta.id
            assert delta.type == "function"
            assert delta.function is not None
            assert (delta.function.name, delta.function.arguments) == (["get_weather", "now"][delta.index], "")
        else:
            assert delta.id is None
            assert delta.function is not None
            assert delta.function.name is None
    assert [chunk.choices[0].finish_reason for chunk in chunks][:-1] == [None] * (len(chunks) - 1)


def test_a_held_back_call_sends_no_empty_events(tool_server: RunningServer, tool_engine: FakeEngine) -> None:
    say(tool_engine, '<tool_call>{"name": "now"}</tool_call>', 1)
    events = events_of(tool_server.chat(tools=[NOW], stream=True).text)
    assert [list(event["choices"][0]["delta"]) for event in events] == [
        ["role", "content"],
        ["tool_calls"],
        ["tool_calls"],
        [],
    ]


def test_log_probabilities_come_with_text_that_is_held_back(
    tool_server: RunningServer, tool_engine: FakeEngine
) -> None:
    say(tool_engine, '<tool_call>{"name": "now"}</tool_call>', 8)
    events = events_of(tool_server.chat(tools=[NOW], stream=True, logprobs=True).text)
    tokens = [t["token"] for e in events if (lp := e["choices"][0]["logprobs"]) for t in lp["content"]]
    assert tuple(tokens) == tool_engine.words


@pytest.mark.parametrize(
    ("text", "max_tokens", "finish_reason"),
    [
        ('<tool_call>\n{"name": "now", "arguments": {"a": "b', None, "stop"),
        ('<tool_call>\n{"name": "now", "arguments": {"a": "b', 1, "length"),
        ('<tool_call>\n{"name": "now", "arguments": {"a": "b"}', None, "tool_calls"),
        (CALLS + '<tool_call>{"name": "now", "arguments": {"a"', None, "stop"),
    ],
)
def test_a_call_that_is_not_closed_is_none_to_wait_for(
    tool_server: RunningServer, tool_engine: FakeEngine, text: str, max_tokens: int | None, finish_reason: str
) -> None:
    tool_engine.words = (text,)
    choice = tool_server.chat(tools=[NOW], max_tokens=max_tokens).json()["choices"][0]
    assert choice["finish_reason"] == finish_reason
    assert choice["message"]["tool_calls"][-1]["function"]["arguments"].startswith('{"a"')


@pytest.mark.parametrize("max_tokens", [1, 4, 8, 15, 25])
def test_nothing_around_a_forced_call_is_content(
    tool_server: RunningServer, tool_engine: FakeEngine, max_tokens: int
) -> None:
    say(tool_engine, '[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]', 3)
    for stream in (False, True):
        answer = tool_server.chat(tools=[NOW], tool_choice="required", max_tokens=max_tokens, stream=stream)
        choices = [event["choices"][0] for event in events_of(answer.text)] if stream else answer.json()["choices"]
        assert not any(choice.get("delta", choice.get("message")).get("content") for choice in choices)
        assert choices[-1]["finish_reason"] == ("tool_calls" if max_tokens == 25 else "length")


def test_nothing_stops_a_forced_call_before_its_end(tool_server: RunningServer, tool_engine: FakeEngine) -> None:
    tool_server.chat(tools=[NOW], tool_choice="required", stop=["a"], stop_token_ids=[3])
    tool_server.chat(tools=[NOW], stop=["a"], stop_token_ids=[3])
    tool_server.chat(guided_regex="a", stop=["a"], stop_token_ids=[3])
    assert [params.stop for params in tool_engine.sampling] == [(), ("a",), ("a",)]
    assert [params.stop_token_ids for params in tool_engine.sampling] == [(), (3,), (3,)]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("prompt", "text"),
    [("Hi", "<think>\nHm.\n</think>\n\nYes."), ("Hi <think>\n", "Hm.\n</think>\n\nYes.")],
)
def test_reasoning_goes_by_both_names(
    tool_server: RunningServer, tool_engine: FakeEngine, prompt: str, text: str, stream: bool
) -> None:
    say(tool_engine, text, 3)
    answer = tool_server.chat(prompt, stream=stream)
    if stream:
        parts = [event["choices"][0]["delta"] for event in events_of(answer.text)]
        message = {
            key: "".join(part.get(key, "") for part in parts) for key in ("content", "reasoning", "reasoning_content")
        }
    else:
        message = answer.json()["choices"][0]["message"]
    assert (message["content"], message["reasoning"], message["reasoning_content"]) == ("Yes.", "Hm.", "Hm.")


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
@pytest.mark.parametrize(
    ("prompt", "text"),
    [("Hi", "<think>\nHm.\n</think>\n\nYes."), ("Hi <think>\n", "Hm.\n</think>\n\nYes.")],
)
def test_reasoning_is_left_out_where_nobody_wants_it(
    tool_server: RunningServer, tool_engine: FakeEngine, prompt: str, text: str, size: int
) -> None:
    say(tool_engine, text, size)
    whole = tool_server.chat(prompt, include_reasoning=False).json()
    message = whole["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "Yes."}
    assert whole["usage"]["completion_tokens_details"]["reasoning_tokens"] > 0
    events = events_of(tool_server.chat(prompt, include_reasoning=False, stream=True).text)
    deltas = [event["choices"][0]["delta"] for event in events]
    assert {key for delta in deltas for key in delta} == {"role", "content"}
    assert "".join(delta.get("content", "") for delta in deltas) == "Yes."
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    for asked in (None, True):
        assert tool_server.chat(prompt, include_reasoning=asked).json()["choices"][0]["message"]["reasoning"] == "Hm."


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_a_third_turn_leaks_no_mark_of_reasoning(
    tool_server: RunningServer, tool_engine: FakeEngine, size: int
) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "</think>"},
        {"role": "tool", "tool_call_id": "c1", "content": "</think> 42 <think>\n"},  # the fake's prompt ends so, too
    ]
    say(tool_engine, "<think>\nIt is 42.\n</think>\n\nIt's 42.", size)
    body = {"messages": messages, "tools": [NOW]}
    message = tool_server.client.post("/v1/chat/completions", json=body).json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("It is 42.", "It's 42.")


def test_several_answers_are_read_apart(tool_server: RunningServer, tool_engine: FakeEngine) -> None:
    say(tool_engine, CALLS, 3)
    events = events_of(tool_server.chat(tools=[WEATHER, NOW], n=2, stream=True).text)
    choices = [event["choices"][0] for event in events]
    for index in (0, 1):
        calls = [c for choice in choices if choice["index"] == index for c in choice["delta"].get("tool_calls", [])]
        assert [c["function"]["name"] for c in calls if "id" in c] == ["get_weather", "now"]
    whole = tool_server.chat(tools=[WEATHER, NOW], n=2).json()["choices"]
    assert len({call["id"] for choice in whole for call in choice["message"]["tool_calls"]}) == 4


def test_a_plain_request_is_never_touched(tool_server: RunningServer, tool_engine: FakeEngine) -> None:
    say(tool_engine, "  " + CALLS + " \n", 3)
    message = tool_server.chat().json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": "  " + CALLS + " \n"}
    assert tool_engine.conversations[0][1]["tools"] == ()


def test_without_parsers_reasoning_is_content(server: RunningServer, engine: FakeEngine) -> None:
    say(engine, "<think>Hm.</think>Yes.", 3)
    assert server.chat().json()["choices"][0]["message"]["content"] == "<think>Hm.</think>Yes."


def test_one_call_only(tool_client: openai.OpenAI, tool_engine: FakeEngine) -> None:
    say(tool_engine, CALLS, 8)
    answer = tool_client.chat.completions.create(
        model="org/fake-vl", messages=ASK, tools=[WEATHER, NOW], parallel_tool_calls=False
    )
    calls: Any = answer.choices[0].message.tool_calls
    assert [call.function.name for call in calls] == ["get_weather"]


def test_an_answer_cut_short_has_no_half_calls(tool_server: RunningServer, tool_engine: FakeEngine) -> None:
    say(tool_engine, CALLS, 8)
    choice = tool_server.chat(tools=[WEATHER], max_tokens=5).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    assert choice["message"] == {"role": "assistant", "content": CALLS[:40]}


def test_the_template_gets_the_tools(tool_server: RunningServer, tool_engine: FakeEngine) -> None:
    for choice, offered in (("auto", (WEATHER,)), ("required", (WEATHER,)), ("none", ())):
        tool_server.chat(tools=[WEATHER], tool_choice=choice)
        assert tool_engine.conversations[-1][1]["tools"] == offered


def test_pictures_in_the_result_of_a_tool(tool_server: RunningServer, tool_engine: FakeEngine) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "now", "arguments": "{}"}}
    messages = [
        *ASK,
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]},
    ]
    body = {"messages": messages, "tools": [NOW]}
    answer = tool_server.client.post("/v1/chat/completions", json=body)
    assert answer.json()["usage"]["prompt_tokens_details"]["image_tokens"] > 0
    assert [m.role for m in tool_engine.conversations[0][0]] == ["user", "assistant", "tool"]


def form_of(answer: httpx2.Response, engine: FakeEngine) -> Any:
    assert answer.status_code == 200, answer.text
    form = engine.sampling[-1].structured_outputs
    assert form is not None
    return form


@pytest.mark.parametrize(
    ("choice", "names", "is_parallel"),
    [
        ("required", ("get_weather", "now"), True),
        ({"type": "function", "function": {"name": "now"}}, ("now",), False),
    ],
)
def test_forced_calls(
    server: RunningServer, engine: FakeEngine, choice: Any, names: tuple[str, ...], is_parallel: bool
) -> None:
    """No flag is needed for them: a grammar makes them, whatever the model's own way to write calls is."""
    engine.words = ('[{"name": "now"', ', "arguments": {"a"', ": 1}}]")
    answer = server.chat(tools=[WEATHER, NOW], tool_choice=choice)
    grammar = form_of(answer, engine).grammar
    assert [name for name in ("get_weather", "now") if name in grammar] == list(names)
    assert ('", " call' in grammar) == is_parallel
    choice = answer.json()["choices"][0]
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", None)
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "now", "arguments": '{"a": 1}'}


def test_forced_calls_stream_their_arguments_in_pieces(client: openai.OpenAI, engine: FakeEngine) -> None:
    say(engine, '[{"name": "get_weather", "arguments": {"city": "Rome"}}]', 4)
    choice: Any = {"type": "function", "function": {"name": "get_weather"}}
    stream = client.chat.completions.create(
        model="org/fake-vl", messages=ASK, tools=[WEATHER], tool_choice=choice, stream=True
    )
    pieces = [d.function.arguments for c in stream for d in c.choices[0].delta.tool_calls or [] if d.function]
    assert len(pieces) > 3
    assert json.loads("".join(piece or "" for piece in pieces)) == {"city": "Rome"}


THINK = {"<think>": AddedToken(7, is_special=False), "</think>": AddedToken(8, is_special=False)}


@pytest.mark.parametrize(
    ("prompt", "is_open"), [("Hi", False), ("Hi <think>\n", True), ("Hi <think> </think>", False)]
)
def test_a_grammar_waits_for_the_end_of_reasoning(
    tool_server: RunningServer, tool_engine: FakeEngine, prompt: str, is_open: bool
) -> None:
    tool_engine.added_tokens = THINK
    answer = tool_server.chat(prompt, response_format={"type": "json_object"})
    assert form_of(answer, tool_engine).thinking == Thinking(7, 8, is_open)


@pytest.mark.parametrize("fields", [{"continue_final_message": True}, {"add_generation_prompt": False}])
@pytest.mark.parametrize(
    ("messages", "is_open"),
    [
        ([("user", "What is <think>?"), ("assistant", "The tag")], False),
        ([("user", "What is"), ("assistant", "<think>The tag")], True),
        ([("user", "What is"), ("assistant", "<think>The tag</think>")], False),
        ([("assistant", "The tag"), ("user", "is <think>")], False),
    ],
)
def test_only_the_assistants_own_text_makes_a_grammar_wait(
    tool_server: RunningServer,
    tool_engine: FakeEngine,
    fields: dict[str, Any],
    messages: list[tuple[str, str]],
    is_open: bool,
) -> None:
    tool_engine.added_tokens = THINK
    body = {
        "messages": [{"role": role, "content": content} for role, content in messages],
        "guided_choice": ["yes", "no"],
        **fields,
    }
    answer = tool_server.client.post("/v1/chat/completions", json=body)
    assert form_of(answer, tool_engine).thinking == Thinking(7, 8, is_open)


def test_an_answer_must_not_end_with_its_reasoning(tool_server: RunningServer, tool_engine: FakeEngine) -> None:
    tool_engine.added_tokens = THINK
    answer = tool_server.chat(guided_choice=["yes", "no"], stop_token_ids=[3, 8])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "stop_token_ids")
    assert tool_server.chat(stop_token_ids=[3, 8]).status_code == 200


def test_without_tokens_for_its_marks_there_is_no_reasoning_before_a_form(
    tool_server: RunningServer, tool_engine: FakeEngine
) -> None:
    tool_engine.words = ('[{"name": "now", "arguments": {}}]',)
    answer = tool_server.chat("Hi <think>\n", tools=[NOW], tool_choice="required")
    assert form_of(answer, tool_engine).thinking is None
    message = answer.json()["choices"][0]["message"]
    assert message["tool_calls"][0]["function"]["name"] == "now"
    assert "reasoning" not in message


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("text", ["<think>", "<think>a</think>b", "</think>", " <think>"])
def test_a_form_may_be_spelled_like_a_mark_of_reasoning(
    tool_server: RunningServer, tool_engine: FakeEngine, text: str, size: int
) -> None:
    tool_engine.added_tokens = THINK
    say(tool_engine, text, size)
    message = tool_server.chat(guided_choice=[text, "no"]).json()["choices"][0]["message"]
    assert message == {"role": "assistant", "content": text}
    parts = events_of(tool_server.chat(guided_choice=[text, "no"], stream=True).text)
    assert "".join(part["choices"][0]["delta"].get("content", "") for part in parts) == text


def test_a_form_behind_reasoning(tool_server: RunningServer, tool_engine: FakeEngine) -> None:
    tool_engine.added_tokens = {"<think>": AddedToken(10, is_special=False), "</think>": AddedToken(8, False)}
    tool_engine.words = ("<think>", "Hm.", "</think>", "<think>")
    message = tool_server.chat(guided_choice=["<think>"]).json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Hm.", "<think>")


def test_markers_that_are_special_tokens_are_not_skipped(tool_server: RunningServer, tool_engine: FakeEngine) -> None:
    tool_server.chat(tools=[NOW])
    tool_engine.added_tokens = {"<tool_call>": AddedToken(9, is_special=True)}
    tool_server.chat(tools=[NOW])
    tool_server.chat()
    assert all(params.skip_special_tokens for params in tool_engine.sampling)
    assert [params.shown_special_tokens for params in tool_engine.sampling] == [(), ("<tool_call>",), ()]


@pytest.mark.parametrize("text", ['<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', '{"a": 1}'])
def test_a_form_beside_tools(tool_server: RunningServer, tool_engine: FakeEngine, text: str) -> None:
    say(tool_engine, text, 3)
    tool_engine.added_tokens = THINK
    answer = tool_server.chat(tools=[NOW], response_format={"type": "json_object"})
    form = form_of(answer, tool_engine)
    assert "form: %json" in form.grammar
    assert form.thinking == Thinking(7, 8, False)
    message = answer.json()["choices"][0]["message"]
    assert message.get("tool_calls") is None or message["tool_calls"][0]["function"]["name"] == "now"
    assert message["content"] == (None if "tool_call" in text else text)


def test_no_call_begins_in_the_reasoning_before_a_form(tool_server: RunningServer, tool_engine: FakeEngine) -> None:
    tool_engine.added_tokens = {**THINK, "<tool_call>": AddedToken(9, is_special=False)}
    answer = tool_server.chat(tools=[NOW], response_format={"type": "json_object"})
    assert form_of(answer, tool_engine).thinking == Thinking(7, 8, False, barred=(9,))


def test_where_a_call_is_demanded_nothing_is_said_in_a_form(
    tool_server: RunningServer, tool_engine: FakeEngine
) -> None:
    tool_engine.words = ('[{"name": "now", "arguments": {}}]',)
    forms = [
        form_of(tool_server.chat(tools=[NOW], tool_choice="required", **fields), tool_engine)
        for fields in ({}, {"response_format": {"type": "json_object"}})
    ]
    assert forms[0] == forms[1]


def test_a_form_beside_tools_needs_calls_in_json() -> None:
    with RunningServer(enable_auto_tool_choice=True, tool_call_parser="glm45") as server:
        answer = server.chat(tools=[NOW], response_format={"type": "json_object"})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "response_format")


LLAMA4 = [
    '{"name": "now", "parameters": {}}{"name": "get_weather", "parameters": {"city": "Rome"}}',
    '<|python_start|><|python_end|>{"name": "now"}; {"name": "get_weather", "parameters": {"city": "Rome"}}',
    '<|python_start|>{"name": "now"}\n{"name": "get_weather", "parameters": {"city": "Rome"}}<|python_end|>',
    '[now(), get_weather(city="Rome")]',
]


@pytest.mark.parametrize("calls", ["llama4_json", "llama4_pythonic"])
def test_llama_4_may_write_calls_in_either_way(calls: Any) -> None:
    with RunningServer(enable_auto_tool_choice=True, tool_call_parser=calls) as server, client_of(server) as client:
        for text in LLAMA4:
            for size in (1, 5, 1000):
                say(server.engine, text, size)
                fields: dict[str, Any] = {"model": "org/fake-vl", "messages": ASK, "tools": [WEATHER, NOW]}
                whole = client.chat.completions.create(**fields).choices[0]
                with client.chat.completions.stream(**fields) as stream:
                    streamed = stream.until_done().get_final_completion().choices[0]
                for choice in (whole, streamed):
                    assert (choice.finish_reason, choice.message.content or "") == ("tool_calls", "")
                    made = [(c.function.name, json.loads(c.function.arguments)) for c in choice.message.tool_calls]
                    assert made == [("now", {}), ("get_weather", {"city": "Rome"})]


def test_a_form_beside_tools_may_be_that_of_a_llama_4_that_is_asked_for_json() -> None:
    with RunningServer(enable_auto_tool_choice=True, tool_call_parser="llama4_json") as server:
        assert server.chat(tools=[NOW], response_format={"type": "json_object"}).status_code == 200
    with RunningServer(enable_auto_tool_choice=True, tool_call_parser="llama4_pythonic") as server:
        answer = server.chat(tools=[NOW], response_format={"type": "json_object"})
        assert "hermes, llama3_json or llama4_json" in answer.json()["error"]["message"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [7]}, "tools[0]"),
    ({"tools": [{"type": "retrieval", "function": {"name": "f"}}]}, "tools[0]"),
    ({"tools": [NOW, {"function": {"name": "a b"}}]}, "tools[1].function.name"),
    ({"tools": [NOW, NOW]}, "tools[1].function.name"),
    ({"tools": [{"function": {"name": "f", "parameters": []}}]}, "tools[0].function.parameters"),
    ({"tools": [{"function": {"name": "f", "parameters": {"type": "array"}}}]}, "tools[0].function.parameters.type"),
    ({"tools": [{"function": {"name": "f", "parameters": {"type": ["null"]}}}]}, "tools[0].function.parameters.type"),
    ({"tools": [NOW] * 257}, "tools"),
    ({"tools": [NOW], "tool_choice": "always"}, "tool_choice"),
    ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice"),
    ({"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice.function.name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tools": [NOW], "guided_regex": "a+"}, "guided_regex"),
    ({"tools": [NOW], "tool_choice": "required", "min_tokens": 2}, "min_tokens"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
def test_mistakes_are_named(tool_server: RunningServer, fields: dict[str, Any], param: str) -> None:
    answer = tool_server.chat(**fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_a_schema_that_is_too_deep(tool_server: RunningServer) -> None:
    schema: dict[str, Any] = {}
    for _ in range(40):
        schema = {"properties": {"a": schema}}
    answer = tool_server.chat(tools=[{"function": {"name": "f", "parameters": schema}}])
    assert answer.json()["error"]["message"] == (
        "tools[0].function.parameters must be nested at most 32 deep, got 'more'."
    )


def test_arguments_that_need_not_be_there_are_an_object(tool_server: RunningServer) -> None:
    tool = {"function": {"name": "f", "parameters": {"type": ["object", "null"]}}}
    assert tool_server.chat(tools=[tool], tool_choice="required").status_code == 200


def test_auto_needs_its_flags(server: RunningServer) -> None:
    answer = server.chat(tools=[NOW])
    assert answer.status_code == 400
    assert "--enable-auto-tool-choice" in answer.json()["error"]["message"]
    with pytest.raises(UserError, match="enable_auto_tool_choice must be false without tool_call_parser"):
        ServerConfig(model="m", enable_auto_tool_choice=True)


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "function", "name", "parameters", "arguments", "json_schema", "schema", "regex", "x"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
_FIELDS = (
    "tools", "tool_choice", "parallel_tool_calls", "response_format", "structured_outputs", "guided_json",
    "guided_choice", "guided_regex",
)  # fmt: skip


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    fields=st.dictionaries(st.sampled_from(_FIELDS), _JSON, min_size=1, max_size=3),
    calls=_JSON,
    reasoning=_JSON,
)
def test_whatever_is_sent_is_answered_or_refused_by_name(
    tool_server: RunningServer, fields: dict[str, Any], calls: Any, reasoning: Any
) -> None:
    messages = [*ASK, {"role": "assistant", "content": None, "tool_calls": calls, "reasoning": reasoning}, *ASK]
    answer = tool_server.client.post("/v1/chat/completions", json={"messages": messages, **fields})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        error = answer.json()["error"]
        assert error["param"].split(".")[0].split("[")[0] in {*fields, "messages"}, error

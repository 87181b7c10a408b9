"""``/v1/responses`` as OpenAI's client sees it, unmodified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Literal
from unittest.mock import ANY

import openai
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai.types.responses import (
    Response,
    ResponseFunctionToolCall,
    ResponseOutputMessage,
    ResponseReasoningItem,
    ResponseStreamEvent,
)
from pydantic import TypeAdapter

from chiasm.engine.frontend.messages import parse_messages
from chiasm.errors import EngineDeadError, UserError
from chiasm.schema.chat import ChatMessage, ImagePart, TextPart
from tests.server.fake_engine import FakeEngine, conversation_defaults
from tests.server.running import RunningServer, client_of
from tests.server.test_tools import CALLS, say

MODEL = "org/fake-vl"
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a place.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    "strict": True,
}
NOW: dict[str, Any] = {"type": "function", "name": "now"}
THOUGHT_AND_CALLS = "<think>\nHm.\n</think>\n\n" + CALLS
_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@pytest.fixture
def tool_client(tool_server: RunningServer) -> Iterator[openai.OpenAI]:
    with client_of(tool_server) as client:
        yield client


def ask(server: RunningServer, given: Any = "Hi there", **fields: Any) -> Any:
    return server.client.post("/v1/responses", json={"input": given, **fields})


def events_of(server: RunningServer, **fields: Any) -> list[dict[str, Any]]:
    """The events of a stream, each checked against the client's types and against its name."""
    events = []
    for block in ask(server, "How is it?", stream=True, **fields).text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        _EVENT.validate_python(event)
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def test_a_text(client: openai.OpenAI, engine: FakeEngine) -> None:
    response = client.responses.create(
        model=MODEL, input="Hi there", instructions="Be brief.", metadata={"a": "b"}, temperature=0.5
    )
    assert (response.status, response.output_text, response.object) == ("completed", "Hello big world!", "response")
    assert response.id.startswith("resp_")
    assert (response.instructions, response.metadata, response.temperature) == ("Be brief.", {"a": "b"}, 0.5)
    assert response.usage is not None
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (4, 4, 8)
    assert (usage.input_tokens_details.cached_tokens, usage.output_tokens_details.reasoning_tokens) == (2, 0)
    extra = usage.input_tokens_details.model_extra
    assert extra == {"text_tokens": 4, "image_tokens": 0, "video_tokens": 0, "multimodal_tokens": ANY}
    (item,) = response.output
    assert isinstance(item, ResponseOutputMessage)
    assert (item.role, item.status) == ("assistant", "completed")
    messages, prompt_settings = engine.conversations[0]
    assert [(m.role, m.content_param) for m in messages] == [("system", "instructions"), ("user", "input")]
    assert conversation_defaults(prompt_settings) == {}
    Response.model_validate(response.to_dict())


def test_cut_short(client: openai.OpenAI, engine: FakeEngine) -> None:
    response = client.responses.create(model=MODEL, input="Hi", max_output_tokens=2)
    assert (response.status, response.output_text) == ("incomplete", "Hello big")
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == "max_output_tokens"
    assert response.output[0].status == "incomplete"  # type: ignore[union-attr]


def test_an_empty_answer_has_a_message(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.words = ("",)
    response = client.responses.create(model=MODEL, input="Hi")
    assert (response.output_text, len(response.output)) == ("", 1)


ITEMS: list[dict[str, Any]] = [
    {"role": "system", "content": "S"},
    {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA", "detail": "high"},
        {"type": "input_text", "text": "b"},
    ]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]},
    {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
     "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
    {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "now", "arguments": '{"a": 1}'},
    {"type": "function_call", "call_id": "c2", "name": "now", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c1", "output": [
        {"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "data:image/png;base64,BBBB"}]},
    {"type": "function_call_output", "call_id": "c2", "output": "42"},
    {"type": "reasoning", "id": "rs_2", "summary": [{"type": "summary_text", "text": "x"}], "encrypted_content": "y"},
    {"type": "function_call", "call_id": "c3", "name": "now", "arguments": "{}"},
    {"type": "message", "role": "assistant", "content": "And now?"},
    {"role": "user", "content": "Go on."},
]  # fmt: skip


def test_items_are_the_messages_of_a_chat(client: openai.OpenAI, engine: FakeEngine) -> None:
    client.responses.create(model=MODEL, input=ITEMS)  # type: ignore[arg-type]
    call = {"type": "function", "function": {"name": "now", "arguments": "{}"}}
    images = [{"type": "image_url", "image_url": f"data:image/png;base64,{x * 4}"} for x in "AB"]
    chat = parse_messages(
        [
            {"role": "system", "content": "S"},
            {"role": "user", "content": ["a", images[0], "b"]},
            {
                "role": "assistant",
                "content": [{"type": "text", "text": "I look."}],
                "reasoning": "Hm.",
                "tool_calls": [
                    {**call, "id": "c1", "function": {"name": "now", "arguments": '{"a": 1}'}},
                    {**call, "id": "c2"},
                ],
            },
            {"role": "tool", "content": ["see", images[1]], "tool_call_id": "c1"},
            {"role": "tool", "content": "42", "tool_call_id": "c2"},
            {"role": "assistant", "content": None, "tool_calls": [{**call, "id": "c3"}]},
            {"role": "assistant", "content": "And now?"},
            {"role": "user", "content": "Go on."},
        ]
    )
    read = engine.conversations[0][0]
    assert list(map(_shown, read)) == list(map(_shown, chat))
    assert read[1].content[1] == ImagePart("data:image/png;base64,AAAA", "input[1].content[1].image_url")
    assert read[3].content[1] == ImagePart("data:image/png;base64,BBBB", "input[6].output[1].image_url")


def _shown(message: ChatMessage) -> tuple[str, list[str], dict[str, Any]]:
    """A message without where it came from."""
    parts = [part.text if isinstance(part, TextPart) else part.source for part in message.content]
    return message.role, parts, message.extra


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_reasoning_and_calls(tool_client: openai.OpenAI, tool_server: RunningServer, size: int) -> None:
    say(tool_server.engine, THOUGHT_AND_CALLS, size)
    tools: Any = [WEATHER, NOW]
    response = tool_client.responses.create(model=MODEL, input="How is it?", tools=tools)
    thought, message, first, second = response.output
    assert isinstance(thought, ResponseReasoningItem)
    assert thought.content is not None
    assert [part.text for part in thought.content] == ["Hm."]
    assert isinstance(message, ResponseOutputMessage)
    assert response.output_text == "I look."
    assert isinstance(first, ResponseFunctionToolCall)
    assert isinstance(second, ResponseFunctionToolCall)
    assert (first.name, json.loads(first.arguments)) == ("get_weather", {"city": "Rome"})
    assert (second.name, second.arguments) == ("now", "{}")
    assert first.call_id != second.call_id
    assert response.status == "completed"
    assert response.usage is not None
    assert 0 < response.usage.output_tokens_details.reasoning_tokens <= response.usage.output_tokens
    offered = tool_server.engine.conversations[0][1]["tools"]
    assert offered[0]["function"] == {key: value for key, value in WEATHER.items() if key != "type"}
    assert offered[1] == {"type": "function", "function": {"name": "now"}}


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_a_stream_tells_the_same(tool_client: openai.OpenAI, tool_server: RunningServer, size: int) -> None:
    say(tool_server.engine, THOUGHT_AND_CALLS, size)
    tools: Any = [WEATHER, NOW]
    whole = tool_client.responses.create(model=MODEL, input="How is it?", tools=tools)
    events = events_of(tool_server, tools=tools)
    last = events[-1]
    assert last["type"] == "response.completed"
    assert _stripped(last["response"]["output"]) == _stripped(whole.to_dict()["output"])
    assert last["response"]["usage"] == whole.to_dict()["usage"]
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert list(dict.fromkeys(kinds)) == [
        "created", "in_progress", "output_item.added", "content_part.added", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done", "output_text.delta", "output_text.done",
        "function_call_arguments.delta", "function_call_arguments.done", "completed",
    ]  # fmt: skip
    for index, item in enumerate(last["response"]["output"]):
        own = [event for event in events if event.get("output_index") == index]
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]}
        assert own[0]["item"]["status"] == "in_progress"
        assert own[-1]["item"] == item
        text = "".join(event.get("delta", "") for event in own)
        assert text == (item["arguments"] if item["type"] == "function_call" else item["content"][0]["text"])


@pytest.mark.parametrize("size", [1, 3, 8, 1000])
def test_reasoning_is_left_out_where_nobody_wants_it(tool_server: RunningServer, size: int) -> None:
    say(tool_server.engine, THOUGHT_AND_CALLS, size)
    asked = {"input": "How is it?", "tools": [WEATHER, NOW], "include_reasoning": False}
    whole = tool_server.client.post("/v1/responses", json=asked).json()
    assert [item["type"] for item in whole["output"]] == ["message", "function_call", "function_call"]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] > 0
    events = events_of(tool_server, tools=[WEATHER, NOW], include_reasoning=False)
    assert not [event for event in events if "reasoning" in event["type"]]
    assert _stripped(events[-1]["response"]["output"]) == _stripped(whole["output"])


def _stripped(value: Any) -> Any:
    """Without names that are made up for each response."""
    if isinstance(value, list):
        return [_stripped(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _stripped(entry) for key, entry in value.items() if key not in ("id", "call_id")}
    return value


def test_the_clients_own_stream(tool_client: openai.OpenAI, tool_server: RunningServer) -> None:
    say(tool_server.engine, THOUGHT_AND_CALLS, 3)
    tools: Any = [WEATHER, NOW]
    with tool_client.responses.stream(model=MODEL, input="How is it?", tools=tools) as stream:
        deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
        final = stream.get_final_response()
    assert "".join(deltas) == final.output_text == "I look."
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call", "function_call"]


def test_a_stream_that_is_cut_short(server: RunningServer) -> None:
    events = events_of(server, max_output_tokens=1)
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"]["output"][0]["status"] == "incomplete"


def test_a_stream_that_breaks_off(server: RunningServer, engine: FakeEngine, client: openai.OpenAI) -> None:
    engine.generate_error, engine.words_before_error = EngineDeadError("gone"), 2
    events = events_of(server)
    assert events[-1]["type"] == "response.failed"
    failed = events[-1]["response"]
    assert (failed["status"], failed["error"]["code"]) == ("failed", "server_error")
    assert failed["output"][0]["content"][0]["text"] == "Hello big"
    assert client.responses.create(model=MODEL, input="Hi", stream=True)
    engine.generate_error = None
    assert ask(server, previous_response_id=failed["id"]).status_code == 404


class Verdict(pydantic.BaseModel):
    verdict: Literal["yes", "no"]


def test_a_parsed_answer(client: openai.OpenAI, engine: FakeEngine) -> None:
    engine.words = ('{"verdict"', ': "yes"}')
    response = client.responses.parse(model=MODEL, input="Is it?", text_format=Verdict)
    assert response.output_parsed == Verdict(verdict="yes")
    form = engine.sampling[0].structured_outputs
    assert form is not None
    assert form.param == "text.format.schema"
    with client.responses.stream(model=MODEL, input="Is it?", text_format=Verdict) as stream:
        assert stream.get_final_response().output_parsed == Verdict(verdict="yes")


def test_forced_calls(server: RunningServer, engine: FakeEngine) -> None:
    engine.words = ('[{"name": "now"', ', "arguments": {"a"', ": 1}}]")
    answer = ask(server, tools=[WEATHER, NOW], tool_choice={"type": "function", "name": "now"}).json()
    (call,) = answer["output"]
    assert (call["name"], call["arguments"], call["status"]) == ("now", '{"a": 1}', "completed")
    assert answer["tool_choice"] == {"type": "function", "name": "now"}


def test_log_probabilities(server: RunningServer, tool_server: RunningServer) -> None:
    include = ["message.output_text.logprobs"]
    (item,) = ask(server, include=include, top_logprobs=2).json()["output"]
    likely = item["content"][0]["logprobs"]
    assert [entry["token"] for entry in likely] == ["Hello", " big", " world", "!"]
    assert [top["token"] for top in likely[0]["top_logprobs"]] == ["t0", "t1"]
    say(tool_server.engine, "<think>Hm.</think>Yes.", 1)
    _thought, message = ask(tool_server, include=include).json()["output"]
    assert "".join(entry["token"] for entry in message["content"][0]["logprobs"]) == "Yes."
    deltas = [event for event in events_of(tool_server, include=include) if "output_text.delta" in event["type"]]
    assert [entry["token"] for event in deltas for entry in event["logprobs"]] == list("Yes.")


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 1000])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('<tool_call>{"name": "now"}</tool_call>\nYes.', ["Yes."]),
        ('<think>Hm.</think>\n\nI do.<tool_call>{"name": "now"}</tool_call>', ["I do."]),
        ('I do.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>\nI did.', ["I do.", "\nI did."]),
        ('I do. <tool_call>{"name": "now"}</tool_call>I did.', ["I do.", " I did."]),
        ("<think></think>Yes.", ["Yes."]),
        ("<think>Hm.</think><b>", ["<b>"]),
    ],
)
def test_log_probabilities_are_those_of_what_is_said(
    tool_server: RunningServer, size: int, text: str, said: list[str]
) -> None:
    say(tool_server.engine, text, size)
    answer = ask(tool_server, include=["message.output_text.logprobs"], tools=[NOW]).json()
    parts = [item["content"][0] for item in answer["output"] if item["type"] == "message"]
    assert [part["text"] for part in parts] == said
    for part in parts[: 1 if size > 8 else None]:  # a token of two messages is the first one's
        tokens = "".join(entry["token"] for entry in part["logprobs"])
        assert part["text"].strip() in tokens, part
        if size == 1:
            assert tokens.strip() == part["text"].strip()


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_not_closed(tool_server: RunningServer, stream: bool) -> None:
    say(tool_server.engine, '<tool_call>{"name": "now", "arguments": {"a": "b', 3)
    body = events_of(tool_server, tools=[NOW])[-1]["response"] if stream else ask(tool_server, tools=[NOW]).json()
    assert (body["status"], body["incomplete_details"]) == ("incomplete", None)
    assert [(item["type"], item["status"]) for item in body["output"]] == [("function_call", "incomplete")]


def test_forced_calls_cut_between_two(tool_server: RunningServer) -> None:
    say(tool_server.engine, '[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]', 3)
    answer = ask(tool_server, tools=[NOW], tool_choice="required", max_output_tokens=13).json()
    assert [(item["type"], item["status"]) for item in answer["output"]] == [("function_call", "completed")]
    assert answer["status"] == "incomplete"


def test_what_reasoning_effort_becomes(server: RunningServer, engine: FakeEngine) -> None:
    ask(server, reasoning={"effort": "low", "summary": "auto"})
    ask(server, reasoning={"effort": "none"})
    ask(server, reasoning={"effort": "none"}, chat_template_kwargs={"enable_thinking": True})
    server.chat(reasoning_effort="high")
    assert [asked["chat_template_kwargs"] for _, asked in engine.conversations] == [
        {"reasoning_effort": "low"},
        {"reasoning_effort": "none", "enable_thinking": False},
        {"reasoning_effort": "none", "enable_thinking": True},
        {"reasoning_effort": "high"},
    ]


def test_what_shapes_the_prompt_reaches_the_engine(server: RunningServer, engine: FakeEngine) -> None:
    shaped: dict[str, Any] = {
        "mm_processor_kwargs": {"min_pixels": 7},
        "media_io_kwargs": {"video": {"fps": 1}},
        "chat_template_kwargs": {"a": 1},
        "cache_salt": "s",
    }
    ask(server, **shaped, top_k=5, seed=3)
    assert conversation_defaults(engine.conversations[0][1]) == shaped
    assert (engine.sampling[0].top_k, engine.sampling[0].seed) == (5, 3)


def test_going_on_from_a_response(tool_client: openai.OpenAI, tool_server: RunningServer) -> None:
    engine = tool_server.engine
    say(engine, THOUGHT_AND_CALLS, 8)
    tools: Any = [WEATHER, NOW]
    first = tool_client.responses.create(model=MODEL, input=ITEMS[:2], tools=tools, instructions="Once.")  # type: ignore[arg-type]
    calls = [item for item in first.output if isinstance(item, ResponseFunctionToolCall)]
    outputs: Any = [{"type": "function_call_output", "call_id": c.call_id, "output": "17"} for c in calls]
    second = tool_client.responses.create(
        model=MODEL, input=outputs, tools=tools, previous_response_id=first.id, stream=True
    )
    (done,) = [event for event in second if event.type == "response.completed"]
    tool_client.responses.create(model=MODEL, input="And?", previous_response_id=done.response.id)
    sent: Any = [*ITEMS[:2], *[item.to_dict() for item in first.output], *outputs]
    tool_client.responses.create(model=MODEL, input=sent, tools=tools)
    told, resent = engine.conversations[1][0], engine.conversations[3][0]
    assert list(map(_shown, told)) == list(map(_shown, resent))
    assert [m.role for m in engine.conversations[2][0]] == [*(m.role for m in told), "assistant", "user"]
    assert [m.role for m in told] == ["system", "user", "assistant", "tool", "tool"]


def test_kept_responses(client: openai.OpenAI, server: RunningServer) -> None:
    made = client.responses.create(model=MODEL, input="Hi")
    assert client.responses.retrieve(made.id).to_dict() == made.to_dict()
    with pytest.raises(openai.BadRequestError, match="background"):
        client.responses.cancel(made.id)
    client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError, match="no response"):
            call(made.id)
    secret = client.responses.create(model=MODEL, input="Hi", store=False)
    assert server.client.get(f"/v1/responses/{secret.id}").status_code == 404


def test_a_key_sees_its_own_responses_only() -> None:
    with RunningServer(api_keys=("one", "two")) as server:
        headers = [{"authorization": f"Bearer {key}"} for key in ("one", "two")]
        body = {"input": "Hi"}
        made = server.client.post("/v1/responses", json=body, headers=headers[0]).json()
        path = f"/v1/responses/{made['id']}"
        assert [server.client.get(path, headers=own).status_code for own in headers] == [200, 404]
        going_on = {**body, "previous_response_id": made["id"]}
        answers = [server.client.post("/v1/responses", json=going_on, headers=own) for own in headers]
        assert [answer.status_code for answer in answers] == [200, 404]
        assert answers[1].json()["error"]["param"] == "previous_response_id"
        assert server.client.delete(path, headers=headers[1]).status_code == 404
        assert server.client.delete(path, headers=headers[0]).status_code == 200


def test_a_server_that_keeps_nothing() -> None:
    with RunningServer(max_stored_responses=0) as server:
        made = ask(server).json()
        assert made["store"] is False
        assert server.client.get(f"/v1/responses/{made['id']}").status_code == 404
        assert ask(server, store=True).json()["error"]["param"] == "store"


def test_a_conversation_larger_than_a_request_may_be() -> None:
    with RunningServer(max_body_bytes=4000) as server:
        made = ask(server, "a " * 100).json()
        for _ in range(10):
            answer = ask(server, "b", previous_response_id=made["id"])
            if answer.status_code != 200:
                break
            made = answer.json()
        assert answer.json()["error"]["param"] == "previous_response_id"
        assert "bytes; at most 4000" in answer.json()["error"]["message"]


def test_a_conversation_that_is_too_large_to_keep_says_so_and_drives_out_nobodys() -> None:
    with RunningServer(max_stored_response_bytes=12_000) as server:
        small = ask(server).json()
        large = ask(server, "a " * 6000)
        assert large.json()["store"] is False
        created, *_, completed = events_of(server, instructions="a" * 12_000)
        assert [event["response"]["store"] for event in (created, completed)] == [True, False]
        for made, status in ((small, 200), (large.json(), 404), (completed["response"], 404)):
            assert server.client.get(f"/v1/responses/{made['id']}").status_code == status
        assert ask(server, "b", previous_response_id=small["id"]).json()["store"] is True


def test_a_response_is_deleted_while_it_streams(server: RunningServer, engine: FakeEngine) -> None:
    engine.words_before_hold = 2
    body = {"input": "Hi", "stream": True}
    with server.client.stream("POST", "/v1/responses", json=body) as streamed:
        lines = streamed.iter_lines()
        created = next(line for line in lines if line.startswith("data: "))
        path = f"/v1/responses/{json.loads(created.removeprefix('data: '))['response']['id']}"
        assert [server.client.delete(path).status_code for _ in range(2)] == [200, 404]
        engine.words_before_hold = None
        last = [line for line in lines if line.startswith("data: ")][-1]
    assert json.loads(last.removeprefix("data: "))["response"]["store"] is False
    assert server.client.get(path).status_code == 404


def test_the_engine_knows_a_response_by_its_request(server: RunningServer, engine: FakeEngine) -> None:
    headers = {"X-Request-Id": "bench-1"}
    made = server.client.post("/v1/responses", json={"input": "Hi"}, headers=headers).json()
    assert engine.request_ids == [f"{made['id']}-bench-1"]


BAD: list[tuple[dict[str, Any], str]] = [
    ({"input": []}, "input"),
    ({"input": 7}, "input"),
    ({"input": [7]}, "input[0]"),
    ({"input": [{"type": "web_search_call"}]}, "input[0].type"),
    ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content[0].image_url"),
    ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": None}]}, "input[0].output"),
    ({"input": [{"type": "reasoning", "content": [7]}]}, "input[0].content[0].text"),
    ({"input": ["x"] * 4097}, "input"),
    ({"input": [{"role": "user", "content": ["x"] * 4097}]}, "input"),
    ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools[0].name"),
    ({"tools": [NOW, NOW]}, "tools[1].name"),
    ({"tools": [NOW], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice.name"),
    ({"tools": [NOW], "tool_choice": {"type": "allowed_tools"}}, "tool_choice"),
    ({"text": {"format": 7}}, "text.format"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema"),
    ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"truncation": "auto"}, "truncation"),
    ({"include": ["file_search_call.results"]}, "include[0]"),
    ({"n": 2}, "n"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"top_p": 2}, "top_p"),
    ({"model": "other"}, "model"),
    ({"previous_response_id": "resp_x"}, "previous_response_id"),
    ({"input": "too long"}, "input"),
]


@pytest.mark.parametrize(("fields", "param"), BAD)
@pytest.mark.parametrize("stream", [False, True])
def test_mistakes_are_named(tool_server: RunningServer, fields: dict[str, Any], param: str, stream: bool) -> None:
    answer = tool_server.client.post("/v1/responses", json={"input": "Hi", "stream": stream, **fields})
    assert answer.status_code in (400, 404), answer.text
    assert answer.json()["error"]["param"] == param


def test_errors_of_the_engine_name_the_input(server: RunningServer, engine: FakeEngine) -> None:
    engine.generate_error = UserError("no token is left to sample.", param="bad_words")
    assert ask(server).json()["error"]["param"] == "bad_words"
    engine.prepare_error = UserError("messages has 9 characters of text.", param="messages")
    error = ask(server).json()["error"]
    assert (error["message"], error["param"]) == ("input has 9 characters of text.", "input")


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "content", "output", "text", "name", "arguments", "call_id", "format"]),
            inner
            | st.sampled_from(["message", "user", "assistant", "function_call", "function_call_output", "reasoning"]),
            max_size=5,
        )
    ),
    max_leaves=14,
)
_FIELDS = ("input", "tools", "tool_choice", "text", "reasoning", "include", "metadata", "store", "truncation")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(_FIELDS), _JSON, min_size=1, max_size=3))
def test_whatever_is_sent_is_answered_or_refused_by_name(tool_server: RunningServer, fields: dict[str, Any]) -> None:
    answer = tool_server.client.post("/v1/responses", json={"input": "Hi", **fields})
    assert answer.status_code in (200, 400), answer.text
    if answer.status_code == 400:
        assert answer.json()["error"]["param"].split(".")[0].split("[")[0] in fields, answer.text

"""Chat completions as OpenAI's client sees them, and what reaches the engine."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx2
import openai
import pytest

from chiasm.schema.chat import ChatMessage, ImagePart, TextPart
from tests.clocks import wait_until
from tests.server.fake_engine import TOKENS_PER_IMAGE, FakeEngine, conversation_defaults
from tests.server.running import RunningServer

PNG = "data:image/png;base64,iVBORw0KGgo="
HELLO: list[Any] = [{"role": "user", "content": "Hi there"}]


def events_of(body: str) -> list[Any]:
    """The events of a stream, without the end mark, whose presence is checked."""
    lines = [line.removeprefix("data: ") for line in body.split("\n\n") if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def test_a_whole_answer(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="org/fake-vl", messages=HELLO)
    assert answer.id.startswith("chatcmpl-")
    assert answer.object == "chat.completion"
    assert answer.model == "org/fake-vl"
    choice = answer.choices[0]
    assert (choice.index, choice.message.role, choice.message.content) == (0, "assistant", "Hello big world!")
    assert (choice.finish_reason, choice.logprobs) == ("stop", None)
    usage = answer.usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (2, 4, 6)
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 2


def test_the_exact_keys_of_a_whole_answer(server: RunningServer) -> None:
    answer = server.chat().json()
    assert set(answer) == {"id", "object", "created", "model", "choices", "usage"}
    assert set(answer["choices"][0]) == {"index", "message", "logprobs", "finish_reason", "stop_reason"}
    assert set(answer["usage"]) == {"prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details"}
    assert type(answer["created"]) is int


def test_a_streamed_answer(client: openai.OpenAI) -> None:
    options: Any = {"include_usage": True}
    stream = client.chat.completions.create(model="org/fake-vl", messages=HELLO, stream=True, stream_options=options)
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == "Hello big world!"
    assert [c.choices[0].delta.role for c in chunks[:-1]] == ["assistant", None, None, None, None]
    assert [c.choices[0].finish_reason for c in chunks[:-1]] == [None, None, None, None, "stop"]
    assert len({c.id for c in chunks}) == 1
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 6
    assert all(c.usage is None for c in chunks[:-1])


def test_the_exact_events_of_a_stream(server: RunningServer, engine: FakeEngine) -> None:
    engine.words = ("Yes",)
    response = server.chat(stream=True)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert "content-length" not in response.headers
    role, text = events_of(response.text)
    assert set(role) == {"id", "object", "created", "model", "choices"}
    rest = {"index": 0, "logprobs": None, "stop_reason": None}
    assert role["choices"] == [{**rest, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]
    assert text["choices"] == [{**rest, "delta": {"content": "Yes"}, "finish_reason": "stop"}]


def test_usage_in_every_chunk(server: RunningServer) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True, "include_obfuscation": None}
    events = events_of(server.chat(stream=True, stream_options=options).text)
    assert [e["usage"]["completion_tokens"] for e in events] == [1, 1, 2, 3, 4, 4]


def test_the_asynchronous_client(server: RunningServer) -> None:
    async def ask() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:

            async def one() -> str:
                stream = await client.chat.completions.create(model="org/fake-vl", messages=HELLO, stream=True)
                return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

            return await asyncio.gather(*[one() for _ in range(8)])

    assert asyncio.run(ask()) == ["Hello big world!"] * 8


def test_several_answers(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="org/fake-vl", messages=HELLO, n=3)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 12)


def test_several_streamed_answers_each_have_a_role(server: RunningServer) -> None:
    events = events_of(server.chat(stream=True, n=2).text)
    for index in (0, 1):
        deltas = [e["choices"][0]["delta"] for e in events if e["choices"][0]["index"] == index]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert "".join(d["content"] for d in deltas[1:]) == "Hello big world!"


def test_logprobs(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model="org/fake-vl", messages=HELLO, logprobs=True, top_logprobs=4)
    assert answer.choices[0].logprobs is not None
    content = answer.choices[0].logprobs.content
    assert content is not None
    assert [token.token for token in content] == ["Hello", " big", " world", "!"]
    assert content[1].bytes == list(b" big")
    assert content[1].logprob == -2.5
    # The sampled token was none of the likeliest four; minus infinity is written as a number that JSON has.
    assert [(t.token, t.logprob) for t in content[1].top_logprobs] == [
        ("t0", -0.5),
        ("t1", -1.0),
        ("t2", -1.5),
        (" big", -2.5),
    ]


def test_streamed_logprobs_without_alternatives(server: RunningServer) -> None:
    events = events_of(server.chat(stream=True, logprobs=True).text)
    tokens = [e["choices"][0]["logprobs"]["content"] for e in events[1:]]
    assert [[t["token"] for t in piece] for piece in tokens] == [["Hello"], [" big"], [" world"], ["!"]]
    assert tokens[0][0]["top_logprobs"] == []


def test_every_spelling_of_parts_in_the_order_written(server: RunningServer, engine: FakeEngine) -> None:
    content = [
        "plain",
        {"type": "image_url", "image_url": {"url": PNG, "detail": "auto"}},
        {"type": "text", "text": "literal <image>"},
        {"type": "image_url", "image_url": PNG},
        {"image_url": {"url": PNG}},
        {"text": "no type"},
        {"type": "input_text", "text": "responses' text"},
        {"type": "input_image", "image_url": PNG, "detail": "low"},
        {"type": "output_text", "text": "said"},
    ]
    answer = server.chat(content)
    param = "messages[0].content"
    assert engine.conversations[0][0] == (
        ChatMessage(
            "user",
            (
                TextPart("plain"),
                ImagePart(PNG, f"{param}[1].image_url.url"),
                TextPart("literal <image>"),
                ImagePart(PNG, f"{param}[3].image_url"),
                ImagePart(PNG, f"{param}[4].image_url.url"),
                TextPart("no type"),
                TextPart("responses' text"),
                ImagePart(PNG, f"{param}[7].image_url"),
                TextPart("said"),
            ),
            "messages[0]",
        ),
    )
    usage = answer.json()["usage"]
    details = usage["prompt_tokens_details"]
    assert details["multimodal_tokens"] == {"image": 4 * TOKENS_PER_IMAGE, "video": 0}
    assert details["image_tokens"] == 4 * TOKENS_PER_IMAGE
    assert details["prompt_tokens"] + details["image_tokens"] + details["video_tokens"] == usage["prompt_tokens"]


def test_roles_and_their_further_fields(server: RunningServer, engine: FakeEngine) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": "What is it?", "name": "Ann"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
    ]
    assert server.client.post("/v1/chat/completions", json={"messages": messages}).status_code == 200
    taken = engine.conversations[0][0]
    assert [m.role for m in taken] == ["system", "user", "assistant", "tool"]
    assert [m.extra for m in taken] == [
        {},
        {"name": "Ann"},
        {"tool_calls": [{**call, "function": {"name": "f", "arguments": {}}}], "reasoning": "hm"},
        {"tool_call_id": "c1"},
    ]
    assert taken[2].content == ()


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({}, {}),
        ({"continue_final_message": True}, {"add_generation_prompt": False, "continue_final_message": True}),
        ({"add_generation_prompt": False}, {"add_generation_prompt": False}),
        ({"chat_template_kwargs": {"enable_thinking": False}}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"mm_processor_kwargs": {"max_pixels": 9}}, {"mm_processor_kwargs": {"max_pixels": 9}}),
        ({"media_io_kwargs": {"video": {"fps": 1}}}, {"media_io_kwargs": {"video": {"fps": 1}}}),
        ({"cache_salt": "s", "chat_template_kwargs": None, "mm_processor_kwargs": None}, {"cache_salt": "s"}),
    ],
)
def test_settings_of_the_conversation(
    server: RunningServer, engine: FakeEngine, fields: dict[str, Any], settings: dict[str, Any]
) -> None:
    assert server.chat(**fields).status_code == 200
    assert conversation_defaults(engine.conversations[0][1]) == settings


def test_the_model_may_be_left_out_and_is_named_in_the_answer(server: RunningServer) -> None:
    assert server.chat().json()["model"] == "org/fake-vl"
    assert server.chat(model=None).status_code == 200


def test_nothing_is_sent_before_the_first_token(server: RunningServer, engine: FakeEngine) -> None:
    engine.words_before_hold = 0
    with pytest.raises(httpx2.ReadTimeout):
        server.client.post("/v1/chat/completions", json={"messages": HELLO, "stream": True}, timeout=0.2)
    wait_until(lambda: engine.is_idle)


def test_tokens_are_told_by_their_ids(server: RunningServer) -> None:
    fields = {"return_token_ids": True, "return_tokens_as_token_ids": True, "logprobs": True, "top_logprobs": 1}
    answer = server.chat("a b", max_tokens=2, **fields).json()
    assert (answer["prompt_token_ids"], answer["choices"][0]["token_ids"]) == ([5, 5], [10, 11])
    told = answer["choices"][0]["logprobs"]["content"]
    assert [entry["token"] for entry in told] == ["token_id:10", "token_id:11"]
    assert told[0]["top_logprobs"][0]["token"] == "token_id:500"
    first, *others = events_of(server.chat("a b", max_tokens=2, stream=True, return_token_ids=True).text)
    assert first["prompt_token_ids"] == [5, 5]
    assert [event["choices"][0]["token_ids"] for event in others] == [[10], [11]]
    assert not any("prompt_token_ids" in event for event in others)


def test_prompt_logprobs_have_vllms_form(server: RunningServer) -> None:
    answer = server.chat("a b", prompt_logprobs=0).json()
    assert answer["prompt_logprobs"] == [None, {"5": {"logprob": -1.5, "rank": 9, "decoded_token": " 5"}}]
    assert "prompt_logprobs" not in server.chat("a b").json()


def test_the_prompts_text_is_told_if_that_is_asked_for(server: RunningServer) -> None:
    assert server.chat("a b", return_prompt_text=True).json()["prompt_text"] == "a b"
    assert "prompt_text" not in server.chat("a b").json()
    first, *others = events_of(server.chat("a b", stream=True, return_prompt_text=True).text)
    assert first["prompt_text"] == "a b"
    assert not [event for event in others if "prompt_text" in event]

"""``/tokenize``, ``/detokenize`` and ``/tokenizer_info``, over an engine without a model."""

from __future__ import annotations

from typing import Any

import pytest

from chiasm.errors import UserError
from tests.server.fake_engine import TOKENS_PER_IMAGE, FakeEngine
from tests.server.running import RunningServer

IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}


def post(server: RunningServer, path: str, **body: Any) -> Any:
    return server.client.post(path, json=body)


def test_a_prompt(server: RunningServer) -> None:
    answer = post(server, "/tokenize", prompt="Hi there <image>", add_special_tokens=False)
    assert answer.json() == {"count": 3, "max_model_len": 256, "tokens": [5, 5, 5], "token_strs": None}
    answer = post(server, "/tokenize", prompt="Hi", return_token_strs=True)
    assert answer.json() == {"count": 2, "max_model_len": 256, "tokens": [2, 5], "token_strs": ["t2", "t5"]}


def test_null_is_left_out(server: RunningServer) -> None:
    assert post(server, "/tokenize", prompt="Hi", messages=None).json()["count"] == 2
    chat = post(server, "/tokenize", messages=[{"role": "user", "content": "Hi"}], prompt=None)
    assert chat.json()["count"] == 1
    error = post(server, "/tokenize", messages=None).json()["error"]
    assert error["param"] == "prompt"


def test_a_conversation_counts_as_an_answer_to_it_would(server: RunningServer, engine: FakeEngine) -> None:
    messages = [{"role": "user", "content": [IMAGE, {"type": "text", "text": "What is it?"}]}]
    fields: dict[str, Any] = {"messages": messages, "mm_processor_kwargs": {"min_pixels": 7}}
    counted = post(server, "/tokenize", **fields, return_token_strs=True).json()
    asked = server.client.post("/v1/chat/completions", json=fields).json()
    assert counted["count"] == len(counted["tokens"]) == asked["usage"]["prompt_tokens"] == TOKENS_PER_IMAGE + 3
    assert counted["token_strs"][:2] == ["t1", "t1"]
    assert engine.conversations[0] == engine.conversations[1]


@pytest.mark.parametrize(
    "fields",
    [
        {"add_generation_prompt": False},
        {"continue_final_message": True},
        {"chat_template_kwargs": {"a": 1}},
        {"media_io_kwargs": {"video": {"fps": 1}}},
        {"reasoning_effort": "low"},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
    ],
)
def test_what_makes_a_prompt_reaches_the_engine_as_in_a_chat(
    server: RunningServer, engine: FakeEngine, fields: dict[str, Any]
) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    assert post(server, "/tokenize", **body).status_code == 200
    assert server.client.post("/v1/chat/completions", json=body).status_code == 200
    assert engine.conversations[0] == engine.conversations[1]


def test_detokenize(server: RunningServer) -> None:
    assert post(server, "/detokenize", tokens=[7, 8]).json() == {"prompt": "7 8"}


def test_tokenizer_info(server: RunningServer) -> None:
    assert server.client.get("/tokenizer_info").json()["eos_token"] == "<eos>"


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": 7}, "prompt"),
        ("/tokenize", {"prompt": "too long"}, "prompt"),
        ("/tokenize", {"prompt": "Hi", "model": "other"}, "model"),
        ("/tokenize", {"messages": [7]}, "messages[0]"),
        ("/tokenize", {"messages": [{"role": "user", "content": "too long"}]}, "messages"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "a"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/detokenize", {"tokens": "abc"}, "tokens"),
        ("/detokenize", {"tokens": [0.5]}, "tokens"),
        ("/detokenize", {"tokens": [1], "model": "other"}, "model"),
    ],
)
def test_mistakes_are_named(server: RunningServer, path: str, body: dict[str, Any], param: str) -> None:
    answer = server.client.post(path, json=body)
    assert answer.status_code in (400, 404)
    assert answer.json()["error"]["param"] == param


def test_nothing_is_held_after_an_error(server: RunningServer, engine: FakeEngine) -> None:
    engine.prepare_error = UserError("no", param="messages")
    messages = [{"role": "user", "content": [IMAGE]}]
    assert post(server, "/tokenize", messages=messages).status_code == 400
    assert engine.is_idle


def test_counting_takes_a_place_like_an_answer(engine: FakeEngine) -> None:
    with RunningServer(max_queue=1) as server, server.state.admission.admit(1):
        assert post(server, "/tokenize", prompt="Hi").status_code == 503
        assert post(server, "/detokenize", tokens=[1]).status_code == 503


def test_keys_are_needed() -> None:
    with RunningServer(api_keys=("k",)) as server:
        assert post(server, "/tokenize", prompt="Hi").status_code == 401
        assert post(server, "/detokenize", tokens=[1]).status_code == 401
        assert server.client.get("/tokenizer_info").status_code == 401

"""Fields of requests: which reach the engine, which are refused by name, which are warned of."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from chiasm.schema.chat import Truncation
from chiasm.schema.sampling import SamplingParams
from chiasm.server.unserved import UnknownFields
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer


@pytest.mark.parametrize(
    ("fields", "sampling"),
    [
        ({}, {}),
        ({"temperature": 0.0, "seed": 1234, "max_tokens": 2}, {"temperature": 0.0, "seed": 1234, "max_tokens": 2}),
        ({"max_tokens": 2, "max_completion_tokens": 3}, {"max_tokens": 3}),
        ({"stop": None}, {}),
        ({"stop": []}, {}),
        ({"stop": "\n"}, {"stop": ("\n",)}),
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"temperature": None, "n": None, "max_tokens": None, "logprobs": None, "top_logprobs": None}, {}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 3}, {"logprobs": 3}),
        ({"logprobs": False, "top_logprobs": 0}, {}),
        (
            {"top_k": 5, "min_p": 0.1, "top_p": 0.9, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True},
            {"top_k": 5, "min_p": 0.1, "top_p": 0.9, "repetition_penalty": 1.1, "min_tokens": 2, "ignore_eos": True},
        ),
        (
            {"presence_penalty": 1, "frequency_penalty": -1, "stop_token_ids": [7], "n": 2},
            {"presence_penalty": 1.0, "frequency_penalty": -1.0, "stop_token_ids": (7,), "n": 2},
        ),
        (
            {"skip_special_tokens": False, "include_stop_str_in_output": True},
            {"skip_special_tokens": False, "include_stop_str_in_output": True},
        ),
        (
            {"logit_bias": {"7": 1, "9": -100}, "allowed_token_ids": [7, 9], "bad_words": ["x", "y z"]},
            {"logit_bias": {7: 1.0, 9: -100.0}, "allowed_token_ids": (7, 9), "bad_words": ("x", "y z")},
        ),
        ({"logit_bias": {}, "allowed_token_ids": None, "bad_words": []}, {}),
        ({"prompt_logprobs": 2}, {"prompt_logprobs": 2}),
        ({"top_p": 0}, {"top_p": 0.0}),
        ({"n": 2, "temperature": 0}, {"n": 2, "temperature": 0.0}),
    ],
)
def test_decoding_parameters(
    server: RunningServer, engine: FakeEngine, fields: dict[str, Any], sampling: dict[str, Any]
) -> None:
    assert server.chat(**fields).status_code == 200
    assert engine.sampling == [SamplingParams(**{"max_tokens": None, **sampling})]


def test_the_checkpoint_recommends_and_the_request_decides(server: RunningServer, engine: FakeEngine) -> None:
    engine.default_sampling = {"temperature": 0.5, "top_k": 20, "max_tokens": 3}
    server.chat()
    server.chat(temperature=0.7, top_k=-1, max_tokens=2)
    assert engine.sampling == [
        SamplingParams(temperature=0.5, top_k=20, max_tokens=3),
        SamplingParams(temperature=0.7, top_k=-1, max_tokens=2),
    ]


def test_completions_are_short_by_default(server: RunningServer, engine: FakeEngine) -> None:
    server.complete()
    assert engine.sampling == [SamplingParams(max_tokens=16)]


@pytest.mark.parametrize(
    ("fields", "truncation"),
    [
        ({}, None),
        ({"truncate_prompt_tokens": 5}, Truncation(5, 1)),
        ({"truncate_prompt_tokens": -1, "max_tokens": 7}, Truncation(-1, 7)),
    ],
)
def test_prompts_are_cut_if_that_is_asked_for(
    server: RunningServer, engine: FakeEngine, fields: dict[str, Any], truncation: Truncation | None
) -> None:
    assert server.chat(**fields).status_code == 200
    assert server.complete(**{"max_tokens": 1, **fields}).status_code == 200
    assert engine.truncations == [truncation, truncation]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "end"}, "suffix"),
        ({"use_beam_search": True}, "use_beam_search"),
    ],
)
def test_known_but_unserved_fields_are_refused_by_name(
    server: RunningServer, fields: dict[str, Any], param: str
) -> None:
    for answer in (server.chat(**fields), server.complete(**fields)):
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
        assert answer.json()["error"]["message"].startswith(f"{param} is not served by this version")


@pytest.mark.parametrize(
    "fields",
    [{"prompt_logprobs": 0}, {"return_token_ids": True}, {"return_tokens_as_token_ids": True},
     {"truncate_prompt_tokens": 5}],
)  # fmt: skip
def test_responses_tell_nothing_of_their_prompts(server: RunningServer, fields: dict[str, Any]) -> None:
    answer = server.client.post("/v1/responses", json={"input": "Hi", **fields})
    assert (answer.status_code, [answer.json()["error"]["param"]]) == (400, list(fields))


def test_responses_take_limits_on_tokens(server: RunningServer, engine: FakeEngine) -> None:
    fields = {"logit_bias": {"5": 1}, "allowed_token_ids": [5], "bad_words": ["x"]}
    assert server.client.post("/v1/responses", json={"input": "Hi", **fields}).status_code == 200
    own = engine.sampling[0]
    assert (own.logit_bias, own.allowed_token_ids, own.bad_words) == ({5: 1.0}, (5,), ("x",))


def test_special_tokens_are_put_around_plain_prompts_only(server: RunningServer, engine: FakeEngine) -> None:
    for fields in ({}, {"add_special_tokens": True}, {"add_special_tokens": False}):
        assert server.complete(**fields).status_code == 200
    assert engine.added_special == [True, True, False]
    assert server.chat(add_special_tokens=False).status_code == 200
    assert server.chat(add_special_tokens=True).json()["error"]["param"] == "add_special_tokens"


def test_a_template_of_a_request_is_refused_unless_trusted(server: RunningServer, engine: FakeEngine) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}], "chat_template": "{{ 1 }}"}
    for path in ("/v1/chat/completions", "/tokenize"):
        answer = server.client.post(path, json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template")
        assert "--trust-request-chat-template" in answer.json()["error"]["message"]
    for answer in (
        server.complete(chat_template="{{ 1 }}"),
        server.client.post("/v1/responses", json={"input": "Hi", "chat_template": "{{ 1 }}"}),
    ):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "chat_template")
    assert engine.conversations == []
    with RunningServer(trust_request_chat_template=True) as trusting:
        assert trusting.chat(chat_template="{{ 1 }}").status_code == 200
        assert trusting.engine.conversations[0][1]["chat_template"] == "{{ 1 }}"


def test_completions_have_no_tools(server: RunningServer) -> None:
    fields: dict[str, Any] = {"tools": [{"type": "function"}], "tool_choice": "required"}
    for name, value in fields.items():
        answer = server.complete(**{name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)


def test_their_harmless_values_are_accepted(server: RunningServer) -> None:
    fields: dict[str, Any] = {
        "tools": None, "tool_choice": "auto", "response_format": {"type": "text"}, "logit_bias": {}, "best_of": 1,
        "prompt_logprobs": None, "suffix": None, "bad_words": [], "guided_json": None, "parallel_tool_calls": True,
        "add_special_tokens": False, "spaces_between_special_tokens": False, "user": "me",
        "metadata": {"a": "b"}, "priority": 0, "modalities": ["text"],
    }  # fmt: skip
    assert server.chat(**fields).status_code == 200


def test_unknown_fields_are_warned_of_once(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    server.state.unknown_fields = UnknownFields()
    with caplog.at_level(logging.WARNING, logger="chiasm"):
        assert server.chat(temprature=0.5).status_code == 200
        assert server.chat(temprature=0.5, user="me").status_code == 200
    assert [record.message for record in caplog.records] == [
        "Ignored unknown fields of a request: 'temprature' (said once)."
    ]


def test_unknown_keys_of_known_fields_are_warned_of(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    server.state.unknown_fields = UnknownFields()
    options = {"include_usage": True, "include_obfuscation": False, "chunk_size": 7, "note": "x"}
    with caplog.at_level(logging.WARNING, logger="chiasm"):
        assert server.chat(stream=True, stream_options=options).status_code == 200
        assert server.chat(stream=True, stream_options={"include_usage": None}).status_code == 200
    assert [record.message for record in caplog.records] == [
        "Ignored unknown fields of a request: 'stream_options.chunk_size', 'stream_options.note' (said once)."
    ]


def test_unknown_keys_of_messages_are_warned_of(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    server.state.unknown_fields = UnknownFields()
    part = {"type": "text", "text": "Hi", "speed": 2}
    with caplog.at_level(logging.WARNING, logger="chiasm"):
        for _ in range(2):
            assert server.chat(messages=[{"role": "user", "content": [part], "prefix": True}]).status_code == 200
        items = [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi", "speed": 2}], "status": "completed"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}", "id": "x", "mood": "glad"},
            {"type": "function_call_output", "call_id": "c", "output": [part], "status": None},
            {"type": "reasoning", "summary": [], "content": None},
        ]
        assert server.client.post("/v1/responses", json={"input": items}).status_code == 200
    assert [record.message for record in caplog.records] == [
        "Ignored unknown fields of a request: 'messages.content.speed', 'messages.prefix' (said once).",
        "Ignored unknown fields of a request: 'input.content.speed', 'input.mood', 'input.output.speed' (said once).",
    ]


@pytest.mark.parametrize("name", ["include_usage", "continuous_usage_stats", "include_obfuscation"])
def test_known_keys_of_stream_options_are_checked(server: RunningServer, name: str) -> None:
    error = server.chat(stream=True, stream_options={name: 7}).json()["error"]
    assert error["message"] == f"stream_options.{name} must be true or false, got 7."


def test_a_client_that_makes_names_up_does_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    unknown = UnknownFields()
    for i in range(500):
        unknown.warn({f"x{i}": 1})
    assert len(caplog.records) == 100

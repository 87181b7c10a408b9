"""No field of vLLM's request models is passed over: it is served, refused by name, or known to change nothing."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from chiasm.server.requests import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ResponsesRequest,
    TokenizeChatRequest,
    TokenizeTextRequest,
)
from chiasm.server.unserved import UNSERVED, WITHOUT_EFFECT, UnknownFields
from tests.server.running import RunningServer
from tests.server.vllm_fields import FIELDS

MESSAGES = [{"role": "user", "content": "Hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "Hi"},
    "/v1/responses": {"input": "Hi"},
    "/tokenize": {"messages": MESSAGES},
    "/detokenize": {"tokens": [5]},
}
SERVED: dict[str, set[str]] = {
    "/v1/chat/completions": set(ChatRequest.model_fields),
    "/v1/completions": set(CompletionRequest.model_fields),
    "/v1/responses": set(ResponsesRequest.model_fields) - {"background", "prompt"},
    "/tokenize": {*TokenizeChatRequest.model_fields, *TokenizeTextRequest.model_fields},
    "/detokenize": set(DetokenizeRequest.model_fields),
}
# Values with which clients ask for what isn't served; for others any value will do.
ASKING = {
    "add_special_tokens": True, "background": True, "documents": [{"title": "a", "text": "b"}], "echo": True,
    "ec_transfer_params": {"do": 1}, "enable_response_messages": True, "kv_transfer_params": {"do": True},
    "length_penalty": 0.8, "logprob_token_ids": [5, 6], "max_tool_calls": 2, "previous_input_messages": [{}],
    "priority": -1, "prompt": {"id": "p"}, "prompt_embeds": "AAAA", "repetition_detection": {"max_pattern_size": 4},
    "routed_experts_prompt_start": 3, "suffix": "end", "thinking_token_budget": 0, "truncation_side": "right",
    "use_beam_search": True, "vllm_xargs": {"a": 1}, "watermarking": True,
}  # fmt: skip
HARMLESS = {
    "add_special_tokens": [False, None], "background": [False, None], "documents": [[], None], "echo": [False, None],
    "ec_transfer_params": [None, {}], "enable_response_messages": [False], "kv_transfer_params": [None, {}],
    "length_penalty": [1, 1.0], "logprob_token_ids": [None, []], "max_tool_calls": [None],
    "previous_input_messages": [None, []], "priority": [0], "prompt": [None], "prompt_embeds": [None],
    "repetition_detection": [None, {}, {"max_pattern_size": 0, "min_count": 0}], "routed_experts_prompt_start": [0],
    "suffix": [None, ""], "thinking_token_budget": [None, -1], "truncation_side": [None, "left"],
    "use_beam_search": [False], "vllm_xargs": [None, {}], "watermarking": [None, False],
    "spaces_between_special_tokens": [True, False],
}  # fmt: skip
WITHOUT = {
    "user": ["me"], "session_id": ["s"], "stream_interval": [4], "return_token_offsets": [True, False],
    "mm_payload": ["none", "tensors"], "return_mm_kwargs": [True, None], "service_tier": ["auto", "priority"],
    "prompt_cache_key": ["k"],
}  # fmt: skip


@pytest.mark.parametrize("path", FIELDS)
def test_no_field_is_passed_over(server: RunningServer, path: str, caplog: pytest.LogCaptureFixture) -> None:
    server.state.unknown_fields = UnknownFields()
    others = set(FIELDS[path]) - SERVED[path]
    with caplog.at_level(logging.WARNING, logger="chiasm"):
        for name in sorted(others):
            for value in HARMLESS.get(name, WITHOUT.get(name, ())):
                answer = server.client.post(path, json={**BODIES[path], name: value})
                assert answer.status_code == 200, (name, value, answer.text)
            if name in WITHOUT:
                assert name in WITHOUT_EFFECT
            elif name != "spaces_between_special_tokens":  # which can ask for nothing
                answer = server.client.post(path, json={**BODIES[path], name: ASKING[name]})
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    assert [record for record in caplog.records if record.name.startswith("chiasm")] == []


def test_no_field_of_other_versions_is_passed_over(server: RunningServer) -> None:
    asking = {"logits_processors": ["a.b"], "early_stopping": True, "previous_response": {"id": "resp_1"}}
    for name, value in asking.items():
        answer = server.client.post("/v1/responses", json={"input": "Hi", name: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
        assert server.client.post("/v1/responses", json={"input": "Hi", name: None}).status_code == 200


def test_what_is_refused_is_not_without_effect() -> None:
    assert not UNSERVED & WITHOUT_EFFECT
    for served in SERVED.values():
        assert not served & WITHOUT_EFFECT - {"metadata", "store"}, "those are of responses, and given back"


def test_keys_of_structured_outputs_that_ask_for_nothing(server: RunningServer) -> None:
    dumped = {
        "json": None, "regex": "a+", "choice": None, "grammar": None, "json_object": None, "structural_tag": None,
        "disable_any_whitespace": False, "disable_additional_properties": False, "whitespace_pattern": None,
    }  # fmt: skip
    assert server.chat(structured_outputs=dumped).status_code == 200
    for key, value in {"disable_any_whitespace": True, "whitespace_pattern": " ", "structural_tag": "{}"}.items():
        answer = server.chat(structured_outputs={**dumped, key: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "structured_outputs")
        assert key in answer.json()["error"]["message"]


def test_a_salt_may_be_as_long_as_there(server: RunningServer) -> None:
    assert server.chat(cache_salt="s" * 1024).status_code == 200
    answer = server.chat(cache_salt="s" * 1025)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "cache_salt")


def test_a_request_is_named_by_its_body(server: RunningServer) -> None:
    for answer in (server.chat(request_id="mine:1.a"), server.complete(request_id="mine:1.a")):
        assert "-mine:1.a-" in answer.json()["id"]
        assert answer.headers["x-request-id"] == "mine:1.a"
    body = {"input": "Hi", "request_id": "mine:1.a"}
    assert server.client.post("/v1/responses", json=body).headers["x-request-id"] == "mine:1.a"
    named = {"x-request-id": "header"}
    answer = server.client.post("/v1/chat/completions", json={"messages": MESSAGES, "request_id": "b"}, headers=named)
    assert answer.headers["x-request-id"] == "header"
    assert "-header-" in answer.json()["id"]
    for bad in ("", "a b", "x" * 129, "a\nb", 7):
        answer = server.chat(request_id=bad)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "request_id")

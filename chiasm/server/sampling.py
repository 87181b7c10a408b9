"""Decoding parameters of a request: what it says, else what the checkpoint recommends, else OpenAI's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chiasm.schema.sampling import SamplingParams
from chiasm.schema.structured import StructuredOutputs
from chiasm.server.requests import ChatRequest, CompletionRequest, GenerationRequest, ResponsesRequest
from chiasm.server.structured import parse_structured_outputs

_COMPLETION_MAX_TOKENS = 16  # OpenAI's default, which clients of the older API count on

_SAME_NAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "seed", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output",
)  # fmt: skip


def chat_sampling(
    request: ChatRequest, defaults: Mapping[str, Any], structured: StructuredOutputs | None
) -> SamplingParams:
    """Decoding parameters of a chat request; without a limit the answer may fill the context.

    Args:
        request: what the client asks for.
        defaults: what the checkpoint recommends.
        structured: the form that the answer must have.

    Raises:
        UserError: for a value out of range.
    """
    given = _given(request)
    given["max_tokens"] = request.max_completion_tokens or request.max_tokens or defaults.get("max_tokens")
    given["structured_outputs"] = structured
    given["logprobs"] = (request.top_logprobs or 0) if request.logprobs else None
    return SamplingParams(**{**defaults, **given})


def response_sampling(
    request: ResponsesRequest, defaults: Mapping[str, Any], structured: StructuredOutputs | None
) -> SamplingParams:
    """Decoding parameters of a request for a response; see ``chat_sampling``.

    Raises:
        UserError: for a value out of range.
    """
    given = _given(request)
    given["max_tokens"] = request.max_output_tokens or request.max_tokens or defaults.get("max_tokens")
    given["structured_outputs"] = structured
    given["logprobs"] = (request.top_logprobs or 0) if request.wants_logprobs else None
    return SamplingParams(**{**defaults, **given})


def completion_sampling(request: CompletionRequest, defaults: Mapping[str, Any]) -> SamplingParams:
    """Decoding parameters of a completion request.

    Raises:
        UserError: for a value out of range.
    """
    given = _given(request)
    given["max_tokens"] = request.max_tokens or defaults.get("max_tokens", _COMPLETION_MAX_TOKENS)
    given["structured_outputs"] = parse_structured_outputs(request)
    given["logprobs"] = request.logprobs
    return SamplingParams(**{**defaults, **given})


def _given(request: GenerationRequest) -> dict[str, Any]:
    values = {name: getattr(request, name) for name in _SAME_NAME}
    return {name: value for name, value in values.items() if value is not None}

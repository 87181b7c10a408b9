"""Decoding parameters of a request: what it says, else what the checkpoint recommends, else OpenAI's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chiasm.schema.chat import Truncation
from chiasm.schema.sampling import SamplingParams
from chiasm.schema.structured import StructuredOutputs
from chiasm.server.requests import (
    ChatRequest,
    ChoicesRequest,
    CompletionRequest,
    GenerationRequest,
    ResponsesRequest,
)
from chiasm.server.structured import parse_structured_outputs

_COMPLETION_MAX_TOKENS = 16  # OpenAI's default, which clients of the older API count on

_SAME_NAME = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "seed", "min_tokens", "stop", "stop_token_ids", "ignore_eos", "skip_special_tokens", "include_stop_str_in_output",
    "logit_bias", "allowed_token_ids", "bad_words",
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
    given["prompt_logprobs"] = request.prompt_logprobs
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

    A prompt that is echoed with log-probabilities reports as many as the answer, unless it asks for others. Of a
    request for no token one is sampled, which nobody gets to see.

    Raises:
        UserError: for a value out of range.
    """
    given = _given(request)
    max_tokens = defaults.get("max_tokens", _COMPLETION_MAX_TOKENS)
    given["max_tokens"] = max_tokens if request.max_tokens is None else max(1, request.max_tokens)
    given["structured_outputs"] = parse_structured_outputs(request)
    given["logprobs"] = request.logprobs
    is_echoed = request.echo and request.prompt_logprobs is None
    given["prompt_logprobs"] = request.logprobs if is_echoed else request.prompt_logprobs
    return SamplingParams(**{**defaults, **given})


def truncation_of(request: ChoicesRequest, sampling: SamplingParams) -> Truncation | None:
    """How a request's prompts are to be cut."""
    most = request.truncate_prompt_tokens
    return None if most is None else Truncation(most, sampling.max_tokens or 1)


def _given(request: GenerationRequest) -> dict[str, Any]:
    values = {name: getattr(request, name) for name in _SAME_NAME}
    return {name: value for name, value in values.items() if value is not None}

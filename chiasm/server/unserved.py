"""Fields that clients know from elsewhere and this version does not serve: no setting is dropped in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from chiasm.errors import refuse_unserved, shorten
from chiasm.logs import get_logger

_logger = get_logger(__name__)
_MAX_WARNED = 100  # names; beyond it a client that makes names up would only fill the log

_Test = Callable[[Any], bool]


def _is_empty(value: object) -> bool:
    return value is None or value == [] or value == {} or value == ""


def _is_one_of(*harmless: object) -> _Test:
    # `is`-like comparison of types: 1 == True, but a client that sends 1 did not send True.
    return lambda value: value is None or any(type(value) is type(h) and value == h for h in harmless)


def _detects_no_repetition(value: object) -> bool:
    return _is_empty(value) or (isinstance(value, Mapping) and not value.get("max_pattern_size"))


# A value is harmless when leaving the field out would mean the same.
_HARMLESS: dict[str, _Test] = {
    "tools": _is_empty,
    "tool_choice": _is_one_of("none", "auto"),
    "functions": _is_empty,
    "function_call": _is_one_of("none", "auto"),
    "chat_template": _is_empty,
    "documents": _is_empty,
    "best_of": _is_one_of(1),
    "suffix": _is_empty,
    "media_io_kwargs": _is_empty,
    "prompt_embeds": _is_empty,
    "use_beam_search": _is_one_of(False),
    "length_penalty": _is_one_of(1, 1.0),
    "spaces_between_special_tokens": _is_one_of(True, False),  # no tokenizer here puts any there
    "add_special_tokens": _is_one_of(False),
    "echo": _is_one_of(False),
    "truncation_side": _is_one_of("left"),  # prompts are cut at their beginning
    "thinking_token_budget": _is_one_of(-1),
    "repetition_detection": _detects_no_repetition,
    "watermarking": _is_one_of(False),
    "logprob_token_ids": _is_empty,
    "guided_whitespace_pattern": _is_empty,
    "priority": _is_one_of(0),
    "routed_experts_prompt_start": _is_one_of(0),
    "kv_transfer_params": _is_empty,
    "ec_transfer_params": _is_empty,
    "vllm_xargs": _is_empty,
    # Of older versions of vLLM:
    "logits_processors": _is_empty,
    "early_stopping": _is_one_of(False),
    # Of OpenAI's:
    "modalities": _is_one_of(["text"]),
    "audio": _is_empty,
    "web_search_options": _is_empty,
    "prediction": _is_empty,
    # Of answers that are choices:
    "prompt_logprobs": _is_empty,
    "truncate_prompt_tokens": _is_one_of(),
    "return_token_ids": _is_one_of(False),
    "return_tokens_as_token_ids": _is_one_of(False),
    "return_prompt_text": _is_one_of(False),
    # Of responses:
    "conversation": _is_empty,
    "max_tool_calls": _is_empty,
    "context_management": _is_empty,
    "moderation": _is_empty,
    "enable_response_messages": _is_one_of(False),
    "previous_input_messages": _is_empty,
    "previous_response": _is_empty,
}
UNSERVED = frozenset(_HARMLESS)
"""Fields that are refused, unless their value asks for nothing; some endpoints serve some of them all the same."""

WITHOUT_EFFECT = frozenset(
    (
        "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
        "prompt_cache_retention", "verbosity", "session_id", "stream_interval", "return_token_offsets", "mm_payload",
        "return_mm_kwargs", "guided_decoding_backend",
    )
)  # fmt: skip
"""Fields that are known and change nothing in an answer, so that there is nothing to warn of."""


def refuse_unserved_fields(fields: Mapping[str, Any]) -> None:
    """Refuse fields whose meaning is known but not implemented.

    Args:
        fields: those of a request that its model does not name.

    Raises:
        UserError: naming the first such field.
    """
    for name, value in fields.items():
        is_harmless = _HARMLESS.get(name)
        if is_harmless is not None and not is_harmless(value):
            refuse_unserved(name, value)


class UnknownFields:
    """Warns once of each field that nobody reads."""

    def __init__(self) -> None:
        self._warned: set[str] = set()

    def warn(self, fields: Iterable[str]) -> None:
        """Log the names that are new."""
        new = set(fields) - UNSERVED - WITHOUT_EFFECT - self._warned
        if new and len(self._warned) < _MAX_WARNED:
            self._warned |= new
            names = ", ".join(shorten(name) for name in sorted(new)[:10])
            _logger.warning("Ignored unknown fields of a request: %s (said once).", names)

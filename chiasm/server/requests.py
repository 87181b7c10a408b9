"""The bodies that clients post: which fields there are and their types.

Ranges are checked where the values are used (``SamplingParams``, the engine), so that each limit exists once. The
models have no nested models: messages and prompts are taken apart by hand, because a union of models answers one
bad part with a screen of errors.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from chiasm.errors import UserError
from chiasm.schema.sampling import MAX_LOGPROBS, MAX_STOP_STRINGS
from chiasm.server.openapi import MESSAGE_SCHEMA, PROMPT_SCHEMA, TOOL_SCHEMA

MAX_MESSAGES = 4096
MAX_STOP_TOKEN_IDS = 256
MAX_CACHE_SALT = 256


def _as_list(value: object) -> object:
    return [] if value is None else [value] if isinstance(value, str) else value


_StopStrings = Annotated[list[str], BeforeValidator(_as_list), Field(max_length=MAX_STOP_STRINGS)]
_PositiveInt = Annotated[int, Field(ge=1)]
_Dict = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)]


class GenerationRequest(BaseModel):
    """What both ways of asking have in common. Fields left out or null take the server's defaults."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, hide_input_in_errors=True)

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    max_tokens: _PositiveInt | None = None
    min_tokens: int | None = None
    stop: _StopStrings = []
    stop_token_ids: list[int] | None = Field(None, max_length=MAX_STOP_TOKEN_IDS)
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, bool | None] | None = Field(None, max_length=8)
    cache_salt: str | None = Field(None, max_length=MAX_CACHE_SALT)
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether a stream ends with a chunk that holds the usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def wants_usage_in_every_chunk(self) -> bool:
        """Whether each chunk of a stream holds the usage so far."""
        return self.wants_usage_chunk and bool((self.stream_options or {}).get("continuous_usage_stats"))

    def check(self) -> None:
        """Refuse fields that contradict each other.

        Raises:
            UserError: naming one of them.
        """
        if self.stream_options and not self.stream:
            raise UserError("stream_options needs stream to be true.", param="stream_options")


class ChatRequest(GenerationRequest):
    """Body of ``/v1/chat/completions``."""

    messages: list[Any] = Field(min_length=1, max_length=MAX_MESSAGES, json_schema_extra={"items": MESSAGE_SCHEMA})
    max_completion_tokens: _PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: _Dict = {}
    mm_processor_kwargs: _Dict = {}
    media_io_kwargs: _Dict = {}
    tools: list[Any] | None = Field(None, json_schema_extra={"items": TOOL_SCHEMA})
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None

    def check(self) -> None:
        """See ``GenerationRequest``."""
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise UserError("top_logprobs needs logprobs to be true.", param="top_logprobs")
        if self.continue_final_message and self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt can't both be true."
            raise UserError(message, param="continue_final_message")


class CompletionRequest(GenerationRequest):
    """Body of ``/v1/completions``. ``prompt`` is a string, a list of strings, token ids, or lists of token ids."""

    prompt: Any = Field(json_schema_extra=PROMPT_SCHEMA)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)

    def check(self) -> None:
        """See ``GenerationRequest``."""
        super().check()
        if self.echo and self.logprobs is not None:
            raise UserError("echo together with logprobs is not served by this version.", param="logprobs")

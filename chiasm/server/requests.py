"""The bodies that clients post: which fields there are and their types.

Ranges are checked where the values are used (``SamplingParams``, the engine). Checked here as well, against the same
constants, are lengths of lists, before these are gone through, and numbers that go by another name there, or that are
reckoned with on the way there.

The models have no nested models: messages and prompts are taken apart by hand, because a union of models answers one
bad part with a screen of errors.

Docstrings describe the fields for the reference; decoding parameters that mean what they do in ``SamplingParams`` are
described there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from chiasm.errors import UserError, refuse, refuse_unserved
from chiasm.schema.sampling import (
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORDS,
    MAX_BIASED_TOKENS,
    MAX_LOGPROBS,
    MAX_STOP_STRINGS,
)
from chiasm.server.openapi import FLAT_TOOL_SCHEMA, INPUT_SCHEMA, MESSAGE_SCHEMA, PROMPT_SCHEMA, TOOL_SCHEMA

MAX_MESSAGES = 4096
MAX_STOP_TOKEN_IDS = 256
MAX_CACHE_SALT = 1024  # as vLLM has it
MAX_METADATA = 16  # entries, as OpenAI has it
REQUEST_ID = "[A-Za-z0-9._:-]{1,128}"
REASONING_EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")

_LOGPROBS = "message.output_text.logprobs"
# Reasoning is given as it is, so there is nothing that would have to be encrypted to come back.
_INCLUDABLE = (_LOGPROBS, "reasoning.encrypted_content")
_RESPONSE_KEYS = {"text": ("format", "verbosity"), "reasoning": ("effort", "summary", "generate_summary")}
_STREAM_OPTIONS = ("include_usage", "continuous_usage_stats", "include_obfuscation")


def _as_list(value: object) -> object:
    return [] if value is None else [value] if isinstance(value, str) else value


def _as_effort(value: str) -> str:
    if value not in REASONING_EFFORTS:
        raise ValueError(f"must be one of {', '.join(REASONING_EFFORTS)}")
    return value


def _other_keys(field: str, given: Mapping[str, Any] | None, known: Sequence[str]) -> dict[str, Any]:
    """What a field holds under keys that are not known."""
    return {f"{field}.{key}": value for key, value in (given or {}).items() if key not in known}


_StopStrings = Annotated[list[str], BeforeValidator(_as_list), Field(max_length=MAX_STOP_STRINGS)]
_BadWords = Annotated[list[str], BeforeValidator(_as_list), Field(max_length=MAX_BAD_WORDS)]
_PositiveInt = Annotated[int, Field(ge=1)]
_Effort = Annotated[str, AfterValidator(_as_effort)]
_Dict = Annotated[dict[str, Any], BeforeValidator(lambda value: {} if value is None else value)]


class ModelRequest(BaseModel):
    """What all bodies have in common. Fields left out or null take the server's defaults.

    Attributes:
        model: one of the served names; left out, the first.
    """

    model_config = ConfigDict(extra="allow", allow_inf_nan=False, hide_input_in_errors=True)

    model: str | None = None

    @property
    def unknown(self) -> dict[str, Any]:
        """What of the body nobody reads: fields, and keys of fields as ``stream_options.key``."""
        return dict(self.model_extra or {})

    def check(self) -> None:
        """Refuse fields that contradict each other.

        Raises:
            UserError: naming one of them.
        """


class GenerationRequest(ModelRequest):
    """What all ways of asking for answers have in common.

    Attributes:
        max_tokens: longest answer in tokens. Left out: what the checkpoint recommends, else what the context holds,
            and 16 for ``/v1/completions``.
        stream: send the answer as server-sent events while it is made, and ``[DONE]`` after them.
        stream_options: ``include_usage`` ends a stream with an event of the usage; beside it
            ``continuous_usage_stats`` has the usage so far in every event. Only with ``stream``. Other keys are
            ignored, with a warning in the log; ``include_obfuscation`` without one.
        request_id: a name for the request where it has no ``X-Request-Id``, whose place it takes: 1 to 128 letters,
            digits and ``. _ : -``.
        cache_salt: prompts share cached blocks only with prompts of the same salt.
        response_format: ``{"type": "json_schema", "json_schema": {"name": ..., "schema": ...}}``,
            ``{"type": "json_object"}`` or ``{"type": "text"}``.
        structured_outputs: one of ``json``, ``regex``, ``choice``, ``grammar`` and ``json_object``.
        guided_json: the answer is JSON of this schema.
        guided_regex: the answer matches this expression.
        guided_choice: the answer is one of these texts.
        guided_grammar: the answer is a text of this grammar.
        guided_json_object: the answer is a JSON object.
    """

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
    logit_bias: dict[str, float] | None = Field(None, max_length=MAX_BIASED_TOKENS)
    allowed_token_ids: list[int] | None = Field(None, max_length=MAX_ALLOWED_TOKENS)
    bad_words: _BadWords = []
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    stream: bool | None = None
    stream_options: dict[str, Any] | None = Field(None, max_length=8)
    request_id: str | None = Field(None, pattern=f"^{REQUEST_ID}$")
    cache_salt: str | None = Field(None, max_length=MAX_CACHE_SALT)
    response_format: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    guided_json: str | dict[str, Any] | None = None
    guided_regex: str | None = None
    guided_choice: list[str] | None = None
    guided_grammar: str | None = None
    guided_json_object: bool | None = None

    @property
    def unknown(self) -> dict[str, Any]:
        """See ``ModelRequest``."""
        return super().unknown | _other_keys("stream_options", self.stream_options, _STREAM_OPTIONS)

    @property
    def wants_usage_chunk(self) -> bool:
        """Whether a stream ends with a chunk that holds the usage."""
        return bool((self.stream_options or {}).get("include_usage"))

    @property
    def wants_usage_in_every_chunk(self) -> bool:
        """Whether each chunk of a stream holds the usage so far."""
        return self.wants_usage_chunk and bool((self.stream_options or {}).get("continuous_usage_stats"))

    def check(self) -> None:
        """See ``ModelRequest``."""
        if self.stream_options and not self.stream:
            raise UserError("stream_options needs stream to be true.", param="stream_options")
        for name in _STREAM_OPTIONS:
            value = (self.stream_options or {}).get(name)
            if value is not None and not isinstance(value, bool):
                refuse(f"stream_options.{name}", value, "true or false")


class ChoicesRequest(GenerationRequest):
    """What is common to the endpoints whose answers are choices, which tell of the prompt, too.

    Attributes:
        prompt_logprobs: as in ``SamplingParams``, in vLLM's form: for each token of the prompt, ``null`` for the
            first, a ``logprob``, ``rank`` and ``decoded_token`` by token id. Not with ``stream``.
        truncate_prompt_tokens: keep the last so many tokens of a prompt; -1 keeps as many as leave room for
            ``max_tokens``. No token of an image or a video is cut off: such a request is refused.
        return_token_ids: tell ``prompt_token_ids`` and each choice's ``token_ids``.
        return_tokens_as_token_ids: write the tokens in ``logprobs`` as ``token_id:5``.
    """

    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    truncate_prompt_tokens: int | None = Field(None, ge=-1)
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None

    def check(self) -> None:
        """See ``GenerationRequest``."""
        super().check()
        if self.prompt_logprobs is not None and self.stream:
            message = "prompt_logprobs are not streamed; stream must be false, or echo with logprobs be asked for."
            raise UserError(message, param="prompt_logprobs")


class ChatRequest(ChoicesRequest):
    """A conversation that is to go on.

    Attributes:
        messages: each with a ``role`` and ``content``: a text, or a list of parts. A part is ``{"type": "text",
            "text": ...}``, ``{"type": "image_url", "image_url": {"url": ...}}`` or ``{"type": "video_url",
            "video_url": {"url": ...}}``. Assistants' messages may have ``tool_calls``, those of the role ``tool`` a
            ``tool_call_id``.
        max_completion_tokens: goes before ``max_tokens``.
        logprobs: tell the log-probability of each token of the answer.
        top_logprobs: how many of the likeliest tokens are told in its place. Only with ``logprobs``.
        add_generation_prompt: end the prompt with the head of an answer; the default, unless
            ``continue_final_message`` is set.
        continue_final_message: go on with the last message instead.
        chat_template: a template in place of the checkpoint's; only with ``--trust-request-chat-template``.
        chat_template_kwargs: further names for the checkpoint's template, such as ``enable_thinking``.
        mm_processor_kwargs: ``min_pixels`` and ``max_pixels`` of a picture or a frame, within the server's.
        media_io_kwargs: how videos are sampled: ``{"video": {"fps": 1}}`` or ``{"video": {"num_frames": 32}}``, of
            which -1 takes all frames.
        tools: functions that the model may call.
        tool_choice: ``auto``, ``none``, ``required``, or ``{"type": "function", "function": {"name": ...}}``; left
            out, ``auto`` where there are tools.
        parallel_tool_calls: false gives the first call only.
        reasoning_effort: told to the template; ``none`` also sets ``enable_thinking`` to false there.
        include_reasoning: false leaves out what a reasoning parser tells from the answer. The model thinks all the
            same; log-probabilities and token ids are still those of all tokens.
        return_prompt_text: tell the ``prompt_text`` that the template has made.
    """

    messages: list[Any] = Field(min_length=1, max_length=MAX_MESSAGES, json_schema_extra={"items": MESSAGE_SCHEMA})
    max_completion_tokens: _PositiveInt | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template: str | None = None
    chat_template_kwargs: _Dict = {}
    mm_processor_kwargs: _Dict = {}
    media_io_kwargs: _Dict = {}
    tools: list[Any] | None = Field(None, json_schema_extra={"items": TOOL_SCHEMA})
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    reasoning_effort: _Effort | None = None
    include_reasoning: bool | None = None
    return_prompt_text: bool | None = None

    def check(self) -> None:
        """See ``ModelRequest``."""
        super().check()
        if self.top_logprobs and not self.logprobs:
            raise UserError("top_logprobs needs logprobs to be true.", param="top_logprobs")
        if self.continue_final_message and self.add_generation_prompt:
            message = "continue_final_message and add_generation_prompt can't both be true."
            raise UserError(message, param="continue_final_message")


class TokenizeChatRequest(ChatRequest):
    """A conversation: the body of a chat, of which only what makes the prompt matters.

    Attributes:
        add_special_tokens: can't be true here: the template writes special tokens.
        return_token_strs: tell each token as the vocabulary writes it.
    """

    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    def check(self) -> None:
        """See ``ModelRequest``."""
        super().check()
        if self.add_special_tokens:
            refuse("add_special_tokens", True, "false beside messages: the chat template writes special tokens")


class TokenizeTextRequest(ModelRequest):
    """A plain prompt, as ``/v1/completions`` takes it.

    Attributes:
        prompt: a text, in which special tokens are special; it may be longer than the context.
        add_special_tokens: put around it what the tokenizer puts around a text, which is the default.
        return_token_strs: tell each token as the vocabulary writes it.
    """

    model_config = ConfigDict(strict=True)

    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(ModelRequest):
    """Tokens whose text is asked for.

    Attributes:
        tokens: their ids, no more than the context holds.
    """

    model_config = ConfigDict(strict=True)

    tokens: list[int]


class ResponsesRequest(GenerationRequest):
    """A conversation that is to go on, in OpenAI's newer shape.

    Attributes:
        input: a text, or a list of items: messages with ``role`` and ``content``, whose parts are ``{"type":
            "input_text", "text": ...}`` or ``{"type": "input_image", "image_url": ...}``; ``reasoning``;
            ``function_call``; and ``function_call_output``, whose ``output`` is a text or such parts.
        instructions: a system message before all others, for this response only.
        max_output_tokens: longest answer in tokens. Left out: ``max_tokens``, else what the checkpoint recommends or
            the context holds.
        top_logprobs: how many of the likeliest tokens are told in the place of each; it asks for log-probabilities.
        previous_response_id: a response that is kept, whose conversation goes on.
        store: false doesn't keep this response; the default is to keep it where the server keeps any.
        background: refused.
        prompt: refused.
        truncation: ``disabled``.
        include: ``message.output_text.logprobs`` asks for log-probabilities; ``reasoning.encrypted_content`` changes
            nothing, since reasoning is given as it is.
        metadata: given back.
        text: ``format`` is ``{"type": "json_schema", "name": ..., "schema": ...}``, ``{"type": "json_object"}`` or
            ``{"type": "text"}``.
        reasoning: ``effort`` is told to the template, as ``reasoning_effort`` of a chat.
        tools: functions that the model may call: ``{"type": "function", "name": ..., "parameters": ...}``.
        tool_choice: ``auto``, ``none``, ``required``, or ``{"type": "function", "name": ...}``; left out, ``auto``
            where there are tools.
        parallel_tool_calls: false gives the first call only.
        chat_template_kwargs: further names for the checkpoint's template.
        mm_processor_kwargs: as in a chat.
        media_io_kwargs: as in a chat.
        include_reasoning: as in a chat: false leaves out items of reasoning.
    """

    input: Any = Field(json_schema_extra=INPUT_SCHEMA)
    instructions: str | None = None
    max_output_tokens: _PositiveInt | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    previous_response_id: str | None = Field(None, max_length=128)
    store: bool | None = None
    background: bool | None = None
    prompt: dict[str, Any] | None = None
    truncation: str | None = None
    include: list[str] | None = Field(None, max_length=16)
    metadata: dict[str, str] | None = Field(None, max_length=MAX_METADATA)
    text: dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    tools: list[Any] | None = Field(None, json_schema_extra={"items": FLAT_TOOL_SCHEMA})
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: _Dict = {}
    mm_processor_kwargs: _Dict = {}
    media_io_kwargs: _Dict = {}
    include_reasoning: bool | None = None

    @property
    def unknown(self) -> dict[str, Any]:
        """See ``ModelRequest``."""
        found = super().unknown
        for field, known in _RESPONSE_KEYS.items():
            found |= _other_keys(field, getattr(self, field), known)
        return found

    @property
    def wants_logprobs(self) -> bool:
        """Whether each token comes with its log-probability."""
        return bool(self.top_logprobs) or _LOGPROBS in (self.include or [])

    def check(self) -> None:
        """See ``ModelRequest``."""
        super().check()
        for name, value in (("background", self.background), ("prompt", self.prompt)):
            if value not in (None, False):
                refuse_unserved(name, value)
        if self.n not in (None, 1):
            refuse("n", self.n, "1: a response is one answer")
        if self.truncation not in (None, "disabled"):
            refuse("truncation", self.truncation, "disabled")
        for index, name in enumerate(self.include or []):
            if name not in _INCLUDABLE:
                refuse(f"include[{index}]", name, f"one of {', '.join(_INCLUDABLE)}")
        effort = (self.reasoning or {}).get("effort")
        if effort is not None and effort not in REASONING_EFFORTS:
            refuse("reasoning.effort", effort, f"one of {', '.join(REASONING_EFFORTS)}")
        form = (self.text or {}).get("format")
        if form is not None and not isinstance(form, dict):
            refuse("text.format", form, "an object with a type")


class CompletionRequest(ChoicesRequest):
    """A text that is to go on.

    Attributes:
        prompt: a text, token ids, or a list of either, each of which is answered.
        echo: put the prompt before its answer; one of token ids as their text. With ``logprobs``, those of its tokens
            are told, too.
        logprobs: how many of the likeliest tokens to tell at each token; left out, no log-probabilities.
        max_tokens: longest answer in tokens, 16 if left out; with ``echo`` it may be 0.
        add_special_tokens: put around a text what the tokenizer puts around one, such as a token to begin, which is
            the default; not a second time where the text begins with it.
    """

    prompt: Any = Field(json_schema_extra=PROMPT_SCHEMA)
    echo: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    max_tokens: Annotated[int, Field(ge=0)] | None = None
    add_special_tokens: bool | None = None

    def check(self) -> None:
        """See ``ModelRequest``."""
        super().check()
        if self.max_tokens == 0 and not self.echo:
            raise UserError("max_tokens must be at least 1 without echo, got 0.", param="max_tokens")

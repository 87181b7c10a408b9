"""The bodies that the server answers with, field for field as OpenAI's clients parse them.

``msgspec.UNSET`` fields are left out; None is written as null where clients expect the key.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType
from starlette.responses import Response


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """What the prompt's tokens were.

    ``prompt_tokens`` here are those of text alone: guidellm adds those of media to them, or to all where they aren't
    told. ``multimodal_tokens`` is vLLM's name.
    """

    cached_tokens: int
    prompt_tokens: int
    image_tokens: int
    video_tokens: int
    multimodal_tokens: dict[str, int]


class CompletionTokensDetails(msgspec.Struct, frozen=True):
    """What the answers' tokens were."""

    reasoning_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of a request; those of media count as prompt tokens."""

    prompt_tokens: int
    total_tokens: int
    completion_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET


class TopLogprob(msgspec.Struct, frozen=True):
    """One of the likeliest tokens at a position."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobs(msgspec.Struct, frozen=True):
    """A token of the answer and the likeliest ones in its place."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities in the form of chat answers."""

    content: list[TokenLogprobs]


class CompletionLogprobs(msgspec.Struct, frozen=True):
    """Log-probabilities in the form of completions: parallel lists, an entry per token.

    The first token of an echoed prompt has none.
    """

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class PromptLogprob(msgspec.Struct, frozen=True):
    """One of the tokens that could stand at a place of the prompt, in vLLM's form."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs = list[dict[str, PromptLogprob] | None]
"""By token id, for each token of a prompt: itself and the likeliest ones in its place; None for the first."""


class CalledFunction(msgspec.Struct, frozen=True):
    """A function that is to be called, with its arguments as the text of a JSON object."""

    name: str
    arguments: str


class ToolCallOut(msgspec.Struct, frozen=True):
    """A call of a tool."""

    id: str
    function: CalledFunction
    type: str = "function"


class CalledFunctionDelta(msgspec.Struct, frozen=True):
    """What is new of a function that is to be called: its name first, then its arguments in pieces."""

    name: str | UnsetType = UNSET
    arguments: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct, frozen=True):
    """What is new of a call; only its first piece has an id and a type."""

    index: int
    function: CalledFunctionDelta
    id: str | UnsetType = UNSET
    type: str | UnsetType = UNSET


class ChatMessageOut(msgspec.Struct, frozen=True):
    """The assistant's message; reasoning goes by two names, of which each client knows one."""

    role: str
    content: str | None
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallOut] | UnsetType = UNSET


class ChatChoice(msgspec.Struct, frozen=True):
    """One answer of a chat."""

    index: int
    message: ChatMessageOut
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True):
    """A whole answer to a chat request."""

    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    object: str = "chat.completion"
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType | None = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class ChatDelta(msgspec.Struct, frozen=True):
    """What is new in the assistant's message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """What is new in one answer."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, frozen=True):
    """An event of a streamed chat."""

    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: Usage | UnsetType = UNSET
    object: str = "chat.completion.chunk"
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_text: str | UnsetType | None = UNSET


class CompletionChoice(msgspec.Struct, frozen=True):
    """One completion, or what is new in it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: str | int | None
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True):
    """A whole answer to a completion request, or an event of a streamed one."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: Usage | UnsetType = UNSET
    object: str = "text_completion"


class ModelPermission(msgspec.Struct, frozen=True):
    """What may be done with a model; old clients of OpenAI's list want the key."""

    id: str
    created: int
    object: str = "model_permission"
    allow_create_engine: bool = False
    allow_sampling: bool = True
    allow_logprobs: bool = True
    allow_search_indices: bool = False
    allow_view: bool = True
    allow_fine_tuning: bool = False
    organization: str = "*"
    group: str | None = None
    is_blocking: bool = False


class ModelCard(msgspec.Struct, frozen=True):
    """A name under which the model is served; ``root`` is the checkpoint."""

    id: str
    created: int
    root: str
    max_model_len: int
    permission: list[ModelPermission]
    parent: str | None = None
    object: str = "model"
    owned_by: str = "chiasm"


class ModelList(msgspec.Struct, frozen=True):
    """Every name that is served."""

    data: list[ModelCard]
    object: str = "list"


class Tokenized(msgspec.Struct, frozen=True):
    """The tokens of a prompt; ``token_strs`` are as the vocabulary writes them, if asked for."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class Detokenized(msgspec.Struct, frozen=True):
    """The text of tokens."""

    prompt: str


class Version(msgspec.Struct, frozen=True):
    """The server's version."""

    version: str


def json_response(body: msgspec.Struct) -> Response:
    """A 200 with this body."""
    return Response(msgspec.json.encode(body), media_type="application/json")

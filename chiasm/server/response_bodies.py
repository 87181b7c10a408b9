"""What ``/v1/responses`` answers with and streams, field for field as OpenAI's client parses it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from chiasm.server.bodies import TokenLogprobs

Status = Literal["in_progress", "completed", "incomplete", "failed"]


class OutputText(msgspec.Struct, frozen=True, tag_field="type", tag="output_text"):
    """What the model says."""

    text: str
    logprobs: list[TokenLogprobs] = []
    annotations: list[Any] = []


class ThoughtText(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning_text"):
    """What the model thinks before it answers."""

    text: str


class MessageItem(msgspec.Struct, frozen=True, tag_field="type", tag="message"):
    """A message of the assistant's."""

    id: str
    status: Status
    content: list[OutputText]
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, frozen=True, tag_field="type", tag="reasoning"):
    """A stretch of reasoning."""

    id: str
    status: Status
    content: list[ThoughtText]
    summary: list[Any] = []


class CallItem(msgspec.Struct, frozen=True, tag_field="type", tag="function_call"):
    """A call of a function, with its arguments as the text of a JSON object."""

    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


Item = MessageItem | ReasoningItem | CallItem


class InputTokensDetails(msgspec.Struct, frozen=True):
    """What the prompt's tokens were; the client's type wants to know of writes to a cache, for which nobody pays."""

    cached_tokens: int
    text_tokens: int
    image_tokens: int
    video_tokens: int
    multimodal_tokens: dict[str, int]
    cache_write_tokens: int = 0


class OutputTokensDetails(msgspec.Struct, frozen=True):
    """What the answer's tokens were."""

    reasoning_tokens: int


class ResponseUsage(msgspec.Struct, frozen=True):
    """Tokens of a request; those of media count as input."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class IncompleteDetails(msgspec.Struct, frozen=True):
    """Why an answer is cut short."""

    reason: str


class ResponseErrorInfo(msgspec.Struct, frozen=True):
    """Why there is no whole answer."""

    code: str
    message: str
    param: str | None = None


class ResponseBody(msgspec.Struct, frozen=True, kw_only=True):
    """A response as it is now; what a request left out is shown as it was taken."""

    id: str
    created_at: int
    model: str
    status: Status
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, Any]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[Any]
    top_logprobs: int
    top_p: float
    output: list[Item] = []
    completed_at: int | None = None
    error: ResponseErrorInfo | None = None
    incomplete_details: IncompleteDetails | None = None
    usage: ResponseUsage | None = None
    background: bool = False
    truncation: str = "disabled"
    object: str = "response"


class ResponseDeleted(msgspec.Struct, frozen=True):
    """A response is forgotten."""

    id: str
    object: str = "response"
    deleted: bool = True


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """What every event of a stream has: they are counted from 0."""

    sequence_number: int


class Created(_Event, frozen=True, kw_only=True, tag="response.created"):
    """The response exists."""

    response: ResponseBody


class InProgress(_Event, frozen=True, kw_only=True, tag="response.in_progress"):
    """It is being written."""

    response: ResponseBody


class Completed(_Event, frozen=True, kw_only=True, tag="response.completed"):
    """It is whole."""

    response: ResponseBody


class Incomplete(_Event, frozen=True, kw_only=True, tag="response.incomplete"):
    """It has come to the limit of tokens."""

    response: ResponseBody


class Failed(_Event, frozen=True, kw_only=True, tag="response.failed"):
    """It will not be whole."""

    response: ResponseBody


class ItemAdded(_Event, frozen=True, kw_only=True, tag="response.output_item.added"):
    """An item begins."""

    output_index: int
    item: Item


class ItemDone(_Event, frozen=True, kw_only=True, tag="response.output_item.done"):
    """An item has ended."""

    output_index: int
    item: Item


class _ItemEvent(_Event, frozen=True, kw_only=True):
    """What events within an item have."""

    item_id: str
    output_index: int


class _PartEvent(_ItemEvent, frozen=True, kw_only=True):
    """What events within a part of an item's content have; there is one part."""

    content_index: int = 0


class PartAdded(_PartEvent, frozen=True, kw_only=True, tag="response.content_part.added"):
    """A text begins."""

    part: OutputText | ThoughtText


class PartDone(_PartEvent, frozen=True, kw_only=True, tag="response.content_part.done"):
    """A text has ended."""

    part: OutputText | ThoughtText


class TextDelta(_PartEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    """More of what the model says."""

    delta: str
    logprobs: list[TokenLogprobs]


class TextDone(_PartEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    """All of it."""

    text: str
    logprobs: list[TokenLogprobs]


class ThoughtDelta(_PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    """More of what the model thinks."""

    delta: str


class ThoughtDone(_PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    """All of it."""

    text: str


class ArgumentsDelta(_ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """More of a call's arguments."""

    delta: str


class ArgumentsDone(_ItemEvent, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    """All of them."""

    name: str
    arguments: str


ResponseEvent = (
    Created
    | InProgress
    | Completed
    | Incomplete
    | Failed
    | ItemAdded
    | ItemDone
    | PartAdded
    | PartDone
    | TextDelta
    | TextDone
    | ThoughtDelta
    | ThoughtDone
    | ArgumentsDelta
    | ArgumentsDone
)

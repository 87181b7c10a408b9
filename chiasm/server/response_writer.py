"""From what an answer's text turns out to be to a response's items, and to the events that stream them.

A response that is sent whole has gone through the same events, so that both say the same.
"""

from __future__ import annotations

import time
import uuid
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import msgspec

from chiasm.parsers.events import CallArguments, CallStart, ContentText, Event, ReasoningText
from chiasm.parsers.json_span import JsonSpan
from chiasm.server.bodies import TokenLogprobs, Usage
from chiasm.server.errors import ErrorInfo
from chiasm.server.messages import call_id
from chiasm.server.response_bodies import (
    ArgumentsDelta,
    ArgumentsDone,
    CallItem,
    Completed,
    Created,
    Failed,
    Incomplete,
    IncompleteDetails,
    InProgress,
    InputTokensDetails,
    Item,
    ItemAdded,
    ItemDone,
    MessageItem,
    OutputText,
    OutputTokensDetails,
    PartAdded,
    PartDone,
    ReasoningItem,
    ResponseBody,
    ResponseErrorInfo,
    ResponseEvent,
    ResponseUsage,
    Status,
    TextDelta,
    TextDone,
    ThoughtDelta,
    ThoughtDone,
    ThoughtText,
)

_Made = tuple[type[Any], dict[str, Any]]
"""An event without its number and place."""


class _Draft(Protocol):
    """An item while it grows."""

    id: str

    def item(self, status: Status) -> Item:
        """The item so far."""
        ...

    def begun(self) -> list[_Made]:
        """Events that follow its start."""
        ...

    def done(self) -> list[_Made]:
        """Events that precede its end."""
        ...


@dataclass
class _Message:
    id: str = field(default_factory=lambda: _name("msg"))
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)

    def item(self, status: Status) -> Item:
        return MessageItem(self.id, status, [] if status == "in_progress" else [self._part()])

    def begun(self) -> list[_Made]:
        return [(PartAdded, {"part": OutputText("")})]

    def add(self, text: str, logprobs: list[TokenLogprobs]) -> _Made:
        self.texts.append(text)
        self.logprobs += logprobs
        return TextDelta, {"delta": text, "logprobs": logprobs}

    def done(self) -> list[_Made]:
        part = self._part()
        return [(TextDone, {"text": part.text, "logprobs": part.logprobs}), (PartDone, {"part": part})]

    def _part(self) -> OutputText:
        return OutputText("".join(self.texts), list(self.logprobs))


@dataclass
class _Thought:
    id: str = field(default_factory=lambda: _name("rs"))
    texts: list[str] = field(default_factory=list)

    def item(self, status: Status) -> Item:
        return ReasoningItem(self.id, status, [] if status == "in_progress" else [self._part()])

    def begun(self) -> list[_Made]:
        return [(PartAdded, {"part": ThoughtText("")})]

    def add(self, text: str) -> _Made:
        self.texts.append(text)
        return ThoughtDelta, {"delta": text}

    def done(self) -> list[_Made]:
        part = self._part()
        return [(ThoughtDone, {"text": part.text}), (PartDone, {"part": part})]

    def _part(self) -> ThoughtText:
        return ThoughtText("".join(self.texts))


@dataclass
class _Call:
    name: str
    id: str = field(default_factory=lambda: _name("fc"))
    call_id: str = field(default_factory=call_id)
    texts: list[str] = field(default_factory=list)
    span: JsonSpan = field(default_factory=JsonSpan)
    is_whole: bool = False

    def item(self, status: Status) -> Item:
        if status != "in_progress":  # what cuts an answer behind a whole call does that call no harm
            status = "completed" if self.is_whole else "incomplete"
        return CallItem(self.id, self.call_id, self.name, "".join(self.texts), status)

    def begun(self) -> list[_Made]:
        return []

    def add(self, text: str) -> _Made:
        self.texts.append(text)
        if not self.is_whole and self.span.feed(text) is not None:
            self.is_whole = not self.span.is_broken
        return ArgumentsDelta, {"delta": text}

    def done(self) -> list[_Made]:
        return [(ArgumentsDone, {"name": self.name, "arguments": "".join(self.texts)})]


class ResponseWriter:
    """Writes one response.

    Args:
        body: the response before anything of it is there.

    Attributes:
        body: the response so far, without the item that still grows.
    """

    def __init__(self, body: ResponseBody) -> None:
        self.body = body
        self._draft: _Draft | None = None
        self._num_events = 0
        self._logprobs: list[TokenLogprobs] = []  # of tokens whose text is still held back

    def begin(self) -> Iterator[ResponseEvent]:
        """The events before anything is said."""
        yield self._event(Created, response=self.body)
        yield self._event(InProgress, response=self.body)

    def take(self, events: Sequence[Event], logprobs: Sequence[TokenLogprobs]) -> Iterator[ResponseEvent]:
        """What the news of an answer make of it.

        Args:
            events: what the text is.
            logprobs: of its tokens; empty where nobody wants any. Only those of what is said are shown.
        """
        self._logprobs += logprobs
        told = [event for event in events if isinstance(event, CallStart) or event.text]
        for position, event in enumerate(told, start=1):
            is_last = position == len(told)
            shown = self._take_logprobs(event.text, is_last=is_last) if isinstance(event, ContentText) else []
            yield from self._take_one(event, shown)
        if told and not isinstance(told[-1], ContentText):
            self._logprobs = []

    def _take_logprobs(self, text: str, *, is_last: bool) -> list[TokenLogprobs]:
        """Those of the tokens that a text is made of: without marks before it and what follows in the same news."""
        found = _tokens_of(text, self._logprobs, is_last=is_last)
        first = 0 if isinstance(self._draft, _Message) else found.start
        end = len(self._logprobs) if is_last else found.stop
        shown, self._logprobs = self._logprobs[first:end], self._logprobs[end:]
        return shown

    def end(self, finish_reason: str | None, usage: ResponseUsage) -> Iterator[ResponseEvent]:
        """The last events; ``body`` is the finished response then."""
        is_cut = finish_reason == "length"
        is_whole = not is_cut and not (isinstance(self._draft, _Call) and not self._draft.is_whole)
        status: Status = "completed" if is_whole else "incomplete"
        if self._draft is None and not self.body.output:
            yield from self._open(_Message())  # clients expect to find a text, be it empty
        yield from self._close(status)
        self.body = msgspec.structs.replace(
            self.body,
            status=status,
            usage=usage,
            completed_at=int(time.time()) if is_whole else None,
            incomplete_details=IncompleteDetails("max_output_tokens") if is_cut else None,
        )
        yield self._event(Completed if is_whole else Incomplete, response=self.body)

    def fail(self, error: ErrorInfo) -> ResponseEvent:
        """The last event of a response that breaks off."""
        code = "invalid_prompt" if error.code < 500 else "server_error"
        info = ResponseErrorInfo(code, error.message, error.param)
        output = self.body.output if self._draft is None else [*self.body.output, self._draft.item("incomplete")]
        self.body = msgspec.structs.replace(self.body, status="failed", error=info, output=output)
        return self._event(Failed, response=self.body)

    def _take_one(self, event: Event, logprobs: list[TokenLogprobs]) -> Iterator[ResponseEvent]:
        draft = self._draft
        match event:
            case ContentText():
                if not isinstance(draft, _Message):
                    draft = _Message()
                    yield from self._open(draft)
                yield self._within(*draft.add(event.text, logprobs))
            case ReasoningText():
                if not isinstance(draft, _Thought):
                    draft = _Thought()
                    yield from self._open(draft)
                yield self._within(*draft.add(event.text))
            case CallStart():
                yield from self._open(_Call(event.name))
            case CallArguments():
                assert isinstance(draft, _Call)
                yield self._within(*draft.add(event.text))

    def _open(self, draft: _Draft) -> Iterator[ResponseEvent]:
        yield from self._close("completed")
        self._draft = draft
        yield self._event(ItemAdded, output_index=len(self.body.output), item=draft.item("in_progress"))
        for made in draft.begun():
            yield self._within(*made)

    def _close(self, status: Status) -> Iterator[ResponseEvent]:
        draft = self._draft
        if draft is None:
            return
        for made in draft.done():
            yield self._within(*made)
        item = draft.item(status)
        yield self._event(ItemDone, output_index=len(self.body.output), item=item)
        self.body = msgspec.structs.replace(self.body, output=[*self.body.output, item])
        self._draft = None

    def _within(self, kind: type[Any], fields: dict[str, Any]) -> ResponseEvent:
        """An event within the item that is open."""
        assert self._draft is not None
        return self._event(kind, item_id=self._draft.id, output_index=len(self.body.output), **fields)

    def _event(self, kind: type[Any], **fields: Any) -> ResponseEvent:
        event: ResponseEvent = kind(sequence_number=self._num_events, **fields)
        self._num_events += 1
        return event


def _tokens_of(text: str, logprobs: Sequence[TokenLogprobs], *, is_last: bool) -> range:
    """Which tokens a text is made of, the last or the first ones that can be; all, where their bytes don't tell."""
    ends = list(accumulate(len(entry.bytes) for entry in logprobs))
    written = b"".join(bytes(entry.bytes) for entry in logprobs)
    for wanted in (text.encode(), text.lstrip().encode()):  # white space may be that before a call
        start = written.rfind(wanted) if is_last else written.find(wanted)
        if start >= 0 and wanted:
            return range(bisect_right(ends, start), bisect_left(ends, start + len(wanted)) + 1)
    return range(len(logprobs))


def response_usage(usage: Usage, num_reasoning: int) -> ResponseUsage:
    """The counts under the names that responses have for them."""
    details = usage.prompt_tokens_details
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokensDetails(
            cached_tokens=details.cached_tokens,
            text_tokens=details.prompt_tokens,
            image_tokens=details.image_tokens,
            video_tokens=details.video_tokens,
            multimodal_tokens=details.multimodal_tokens,
        ),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokensDetails(num_reasoning),
        total_tokens=usage.total_tokens,
    )


def _name(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"

"""From the text of a chat answer to the assistant's message: whole, or what is new in it.

Both come from the same events of the same parser, so a stream says what the whole answer says.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from msgspec import UNSET

from chiasm.parsers.answer import AnswerParser
from chiasm.parsers.calls import CallFormat
from chiasm.parsers.events import CallArguments, CallStart, ContentText, Event, ReasoningText
from chiasm.parsers.forced import ForcedCalls
from chiasm.parsers.reasoning import ReasoningFormat
from chiasm.parsers.registry import CALL_FORMATS, REASONING_FORMATS
from chiasm.schema.output import CompletionOutput
from chiasm.schema.sampling import SamplingParams
from chiasm.server.bodies import (
    CalledFunction,
    CalledFunctionDelta,
    ChatDelta,
    ChatMessageOut,
    ToolCallDelta,
    ToolCallOut,
)
from chiasm.server.state import ServerState
from chiasm.server.structured import after_thinking
from chiasm.server.tools import ToolUse


@dataclass(frozen=True)
class Reading:
    """How the answers of one request are read.

    Attributes:
        state: of the server.
        tools: what the request lets the model call.
        has_form: whether answers must have a form.
        continues_message: whether an answer goes on with a message that the request has begun.
    """

    state: ServerState
    tools: ToolUse
    has_form: bool
    continues_message: bool

    @property
    def marks(self) -> ReasoningFormat | None:
        """Around the model's reasoning. Where they are no tokens, an answer with a form can have none before it."""
        name = self.state.config.reasoning_parser
        marks = REASONING_FORMATS[name] if name else None
        if marks is None or (self.has_form and not {marks.start, marks.end} <= self.state.engine.added_tokens.keys()):
            return None
        return marks

    @property
    def calls(self) -> CallFormat | None:
        """How the model writes calls, if it may make any by itself."""
        name = self.state.config.tool_call_parser
        return CALL_FORMATS[name] if name and self.tools.is_auto else None

    def sampling(self, params: SamplingParams, prompt: str | None) -> SamplingParams:
        """Decoding parameters with which an answer to a prompt can be read."""
        added, marks = self.state.engine.added_tokens, self.marks
        markers = (*((marks.start, marks.end) if marks else ()), *(self.calls.markers if self.calls else ()))
        if any(marker in added and added[marker].is_special for marker in markers):
            params = msgspec.structs.replace(params, skip_special_tokens=False)
        form = params.structured_outputs
        if form is not None and marks is not None:
            form = after_thinking(form, marks, added, is_open=self._is_open(prompt))
            params = msgspec.structs.replace(params, structured_outputs=form)
        return params

    def _is_open(self, prompt: str | None) -> bool:
        marks = self.marks
        return marks is not None and marks.is_open_after(prompt or "", continues_message=self.continues_message)

    def answer(self, prompt: str | None) -> AnswerReading:
        """Begin to read an answer to a prompt."""
        tools = self.tools
        if self.marks is None and self.calls is None and not tools.is_forced:
            return AnswerReading(None, is_parallel=True)
        parser = AnswerParser(
            reasoning=self.marks,
            is_reasoning_open=self._is_open(prompt),
            calls=self.calls,
            tools=tools.schemas,
            forced=ForcedCalls() if tools.is_forced else None,
        )
        return AnswerReading(parser, is_parallel=tools.is_parallel)


@dataclass
class AnswerReading:
    """Reads one answer.

    Attributes:
        parser: tells its parts; None if all of it is content.
        is_parallel: whether more than its first call is given.
        num_calls: so far.
    """

    parser: AnswerParser | None
    is_parallel: bool
    num_calls: int = 0

    def take(self, answer: CompletionOutput) -> list[Event]:
        """What is new of an answer."""
        if self.parser is None:
            return [ContentText(answer.text)]
        events = self.parser.feed(answer.text)
        if answer.finish_reason is not None:
            events += self.parser.finish()
        kept = [event for event in events if self.is_parallel or not _is_of_later_call(event)]
        self.num_calls += sum(isinstance(event, CallStart) for event in kept)
        return kept

    def finish_reason(self, answer: CompletionOutput) -> str | None:
        """Why the answer ended, which for an answer with calls is that it waits for their results."""
        return "tool_calls" if self.num_calls and answer.finish_reason == "stop" else answer.finish_reason


def _is_of_later_call(event: Event) -> bool:
    return isinstance(event, CallStart | CallArguments) and event.number > 0


def whole_message(events: Iterable[Event]) -> ChatMessageOut:
    """The message of all events of an answer."""
    content, reasoning = [], []
    calls: list[tuple[str, list[str]]] = []
    for event in events:
        match event:
            case ContentText():
                content.append(event.text)
            case ReasoningText():
                reasoning.append(event.text)
            case CallStart():
                calls.append((event.name, []))
            case CallArguments():
                calls[-1][1].append(event.text)
    made = [ToolCallOut(_call_id(), CalledFunction(name, "".join(parts))) for name, parts in calls]
    thought = "".join(reasoning) or UNSET
    text = "".join(content)
    return ChatMessageOut("assistant", text if text or not made else None, thought, thought, made or UNSET)


def delta_of(event: Event) -> ChatDelta:
    """What an event adds to a streamed message; clients know reasoning by one of two names."""
    match event:
        case ContentText():
            return ChatDelta(content=event.text)
        case ReasoningText():
            return ChatDelta(reasoning=event.text, reasoning_content=event.text)
        case CallStart():
            function = CalledFunctionDelta(name=event.name, arguments="")
            return ChatDelta(tool_calls=[ToolCallDelta(event.number, function, _call_id(), "function")])
        case CallArguments():
            return ChatDelta(tool_calls=[ToolCallDelta(event.number, CalledFunctionDelta(arguments=event.text))])


def _call_id() -> str:
    return f"call_{uuid.uuid4().hex[:24]}"

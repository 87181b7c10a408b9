"""From the text of a chat answer to the assistant's message: whole, or what is new in it.

Both come from the same events of the same parser, so a stream says what the whole answer says.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
from msgspec import UNSET

from chiasm.config.server import ServerConfig
from chiasm.parsers.answer import AnswerParser
from chiasm.parsers.calls import CallFormat
from chiasm.parsers.events import CallArguments, CallStart, ContentText, Event, ReasoningText
from chiasm.parsers.forced import ForcedCalls
from chiasm.parsers.json_span import JsonSpan
from chiasm.parsers.reasoning import ReasoningFormat
from chiasm.parsers.registry import CALL_FORMATS, REASONING_FORMATS
from chiasm.schema.output import CompletionOutput, RequestOutput
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


def call_format(config: ServerConfig, tools: ToolUse) -> CallFormat | None:
    """How the model writes calls, if it may make any by itself."""
    name = config.tool_call_parser
    return CALL_FORMATS[name] if name and tools.is_auto else None


@dataclass(frozen=True)
class Reading:
    """How the answers of one request are read.

    Attributes:
        state: of the server.
        tools: what the request lets the model call.
        has_form: whether answers must have a form.
        continued: the texts of the assistant's message with which the prompt ends, if it ends with a message; None if
            it ends with the head of a new one.
        tells_reasoning: whether the client wants to have it.
    """

    state: ServerState
    tools: ToolUse
    has_form: bool
    continued: tuple[str, ...] | None = None
    tells_reasoning: bool = True

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
        return call_format(self.state.config, self.tools)

    def sampling(self, params: SamplingParams, prompt: str | None) -> SamplingParams:
        """Decoding parameters with which an answer to a prompt can be read.

        Raises:
            UserError: if they would end it before its form has begun.
        """
        added, marks = self.state.engine.added_tokens, self.marks
        markers = (*((marks.start, marks.end) if marks else ()), *(self.calls.markers if self.calls else ()))
        shown = tuple(marker for marker in markers if marker in added and added[marker].is_special)
        params = msgspec.structs.replace(params, shown_special_tokens=shown)
        if self.tools.is_forced:  # what a grammar writes around arguments is no text that a client could mean
            params = msgspec.structs.replace(params, stop=(), stop_token_ids=())
        form = params.structured_outputs
        if form is not None and marks is not None:
            form = after_thinking(form, marks, self.calls, added, is_open=self._is_open(prompt))
            params = msgspec.structs.replace(params, structured_outputs=form)
        return params

    def _is_open(self, prompt: str | None) -> bool:
        marks = self.marks
        return marks is not None and marks.is_open_after(prompt or "", self.continued)

    def answer(self, prompt: str | None) -> AnswerReading:
        """Begin to read an answer to a prompt."""
        tools = self.tools
        marks, is_open = self.marks, self._is_open(prompt)
        if marks is None and self.calls is None and not tools.is_forced:
            return AnswerReading(None, is_parallel=True)
        parser = AnswerParser(
            reasoning=marks,
            is_reasoning_open=is_open,
            thinks_once=self.has_form,
            calls=self.calls,
            tools=tools.schemas,
            forced=ForcedCalls() if tools.is_forced else None,
        )
        opener = (
            self.state.engine.added_tokens[marks.start].token_id if marks and self.has_form and not is_open else None
        )
        return AnswerReading(parser, is_parallel=tools.is_parallel, opener=opener)


@dataclass
class AnswerReading:
    """Reads one answer.

    Attributes:
        parser: tells its parts; None if all of it is content.
        is_parallel: whether more than its first call is given.
        opener: the token with which it has to begin if there is reasoning before its form, whose texts may be spelled
            like the mark; None where any spelling counts.
        num_calls: so far.
        num_whole_calls: those of them whose arguments are whole.
        num_reasoning_tokens: so far; a piece of several tokens in which the reasoning ends counts as a whole.
        is_in_reasoning: whether reasoning goes on behind the latest piece.
        finish_reason: why the answer ended, which for an answer with calls, all of them whole, is that it waits for
            their results.
    """

    parser: AnswerParser | None
    is_parallel: bool
    opener: int | None = None
    num_calls: int = 0
    num_whole_calls: int = 0
    num_reasoning_tokens: int = 0
    is_in_reasoning: bool = False
    finish_reason: str | None = None
    _arguments: JsonSpan | None = None

    def take(self, answer: CompletionOutput) -> list[Event]:
        """What is new of an answer."""
        events = self._events(answer)
        has_calls = 0 < self.num_calls == self.num_whole_calls and answer.finish_reason == "stop"
        self.finish_reason = "tool_calls" if has_calls else answer.finish_reason
        return events

    def _events(self, answer: CompletionOutput) -> list[Event]:
        if self.parser is None:
            return [ContentText(answer.text)]
        if self.opener is not None and answer.token_ids:
            if answer.token_ids[0] != self.opener:
                self.parser.expect_no_reasoning()
            self.opener = None
        was_reasoning = self.parser.is_reasoning
        events = self.parser.feed(answer.text)
        has_thought = any(isinstance(event, ReasoningText) for event in events)
        self.is_in_reasoning = self.parser.is_reasoning
        if was_reasoning or has_thought or self.is_in_reasoning:
            self.num_reasoning_tokens += len(answer.token_ids)
        if answer.finish_reason is not None:
            events += self.parser.finish()
        kept = [event for event in events if self.is_parallel or not _is_of_later_call(event)]
        for event in kept:
            self._follow(event)
        return kept

    def _follow(self, event: Event) -> None:
        if isinstance(event, CallStart):
            self.num_calls += 1
            self._arguments = JsonSpan()
        elif isinstance(event, CallArguments) and self._arguments and self._arguments.feed(event.text) is not None:
            self.num_whole_calls += not self._arguments.is_broken
            self._arguments = None


class News(NamedTuple):
    """What is new of one answer.

    Attributes:
        answer: its text and tokens.
        events: what the text is.
        finish_reason: as clients are told it; None while the answer goes on.
        is_said: whether the tokens are of what is said, or may be, in part at least; not of reasoning alone.
    """

    answer: CompletionOutput
    events: list[Event]
    finish_reason: str | None
    is_said: bool


class AnswersReading:
    """Reads all answers of one request, piece by piece as they come.

    Attributes:
        answers: what has been read, by the answer's index.
    """

    def __init__(self, reading: Reading) -> None:
        self._reading = reading
        self.answers: dict[int, AnswerReading] = {}

    def take(self, output: RequestOutput) -> list[News]:
        """What is new of each answer."""
        news = []
        for answer in output.outputs:
            if answer.index not in self.answers:
                self.answers[answer.index] = self._reading.answer(output.prompt)
            own = self.answers[answer.index]
            events = own.take(answer)
            is_said = not own.is_in_reasoning or any(isinstance(event, ContentText) for event in events)
            if not self._reading.tells_reasoning:
                events = [event for event in events if not isinstance(event, ReasoningText)]
            news.append(News(answer, events, own.finish_reason, is_said))
        return news

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Of all answers so far; None where no reasoning is told from content."""
        if self._reading.marks is None:
            return None
        return sum(answer.num_reasoning_tokens for answer in self.answers.values())


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
    made = [ToolCallOut(call_id(), CalledFunction(name, "".join(parts))) for name, parts in calls]
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
            return ChatDelta(tool_calls=[ToolCallDelta(event.number, function, call_id(), "function")])
        case CallArguments():
            return ChatDelta(tool_calls=[ToolCallDelta(event.number, CalledFunctionDelta(arguments=event.text))])


def call_id() -> str:
    """A name for a call, by which its result will be known."""
    return f"call_{uuid.uuid4().hex[:24]}"

"""An answer's text -> reasoning, content and calls, however the text is cut into pieces."""

from __future__ import annotations

import string
from typing import Literal

from chiasm.parsers.calls import CallFormat, CallName, CallPart, CallReader, Tools
from chiasm.parsers.events import CallArguments, CallStart, ContentText, Event, ReasoningText
from chiasm.parsers.forced import ForcedCalls
from chiasm.parsers.markers import find_marker
from chiasm.parsers.reasoning import ReasoningFormat

_MAX_HELD_SPACE = 256  # characters
_MAX_SKIPPED = 256  # characters between a call and the mark that closes it
_MAX_FED = 4096  # characters at once, so that each decision copies no more than that
_Mode = Literal["reasoning", "content"]


class AnswerParser:
    """Reads one answer.

    A call is held back until it is certain: what turns out to be none is shown as the text that it is. A call within
    the reasoning doesn't end it: only its own mark does. White space around reasoning and calls is dropped, but for
    one side's where text of the same kind goes on behind them; an answer without reasoning and calls stays as it is,
    to the last character.

    Args:
        reasoning: how reasoning is marked; None where the model has none.
        is_reasoning_open: whether the prompt has begun it.
        thinks_once: whether all behind the first reasoning is what is said, however that is spelled.
        calls: how calls are written; None where there are none to be expected.
        tools: the functions that may be called.
        forced: reads what a grammar has made of the answer behind the reasoning, in place of ``calls``.
    """

    def __init__(
        self,
        *,
        reasoning: ReasoningFormat | None = None,
        is_reasoning_open: bool = False,
        thinks_once: bool = False,
        calls: CallFormat | None = None,
        tools: Tools | None = None,
        forced: ForcedCalls | None = None,
    ) -> None:
        self._reasoning = reasoning
        self._thinks_once = thinks_once
        self._calls = calls
        self._tools = tools or {}
        self._forced = forced
        self._mode: _Mode = "reasoning" if is_reasoning_open else "content"
        self._buffer = ""  # text that is not decided on
        self._space = ""  # white space that is text only if more of it follows
        self._drops_space = is_reasoning_open  # at the beginning of what comes next
        self._said: set[_Mode] = set()  # of what there has been text
        self._gaps: dict[_Mode, str] = {}  # white space at its end, which is text if more of it follows
        self._is_at_start = True  # of the reasoning, or of the content before or behind calls
        self._num_calls = 0
        self._reader: CallReader | None = None
        self._is_tagged = False  # whether a marker opened it
        self._held: list[str] = []  # that, where it may be text, and what the reader has been given
        self._has_begun = False  # whether that is a call for certain
        # Behind a call in marks: whether one more or the closing mark may follow, or that mark alone.
        self._tag: Literal["none", "repeats", "closes"] = "none"
        self._events: list[Event] = []

    @property
    def is_reasoning(self) -> bool:
        """Whether the text so far ends within reasoning."""
        return self._mode == "reasoning"

    def expect_no_reasoning(self) -> None:
        """From its first character on the answer is what is said, however that is spelled."""
        self._reasoning = None

    def feed(self, text: str) -> list[Event]:
        """What more text makes certain."""
        for start in range(0, len(text), _MAX_FED):
            self._buffer += text[start : start + _MAX_FED]
            self._decide()
        return self._take_events()

    def finish(self) -> list[Event]:
        """What was held back, once no more text comes."""
        if self._tag != "none" and not self._has_begun:
            self._leave_tag()
            self._decide()
        if self._reader is not None and not self._has_begun:
            self._show("".join(self._held))
        self._show(self._buffer)
        self._reader, self._buffer = None, ""
        if self._mode == "content" and not self._drops_space:
            self._emit(self._space)
        return self._take_events()

    def _take_events(self) -> list[Event]:
        events, self._events = self._events, []
        return events

    def _decide(self) -> None:
        goes_on = True
        while goes_on and self._buffer:
            goes_on = self._step()

    def _step(self) -> bool:
        """Decide on the beginning of the buffer; returns whether there may be more to decide."""
        if self._reader is not None:
            return self._read(self._reader)
        if self._tag != "none":
            return self._go_on_in_tag(self._calls)
        if self._mode == "reasoning":
            return self._go_on_reasoning(self._reasoning)
        if self._is_at_start:
            return self._begin_content()
        if self._forced is not None:
            self._events += self._forced.feed(self._buffer)
            self._buffer = ""
            return False
        marker = self._show_up_to(self._calls.markers_in_text if self._calls else ())
        if marker:
            self._open_or_close(marker)
        return bool(marker)

    def _go_on_reasoning(self, marks: ReasoningFormat | None) -> bool:
        assert marks is not None
        markers = self._calls.markers_in_text if self._calls else ()
        marker = self._show_up_to((marks.start, marks.end, *markers))
        if marker == marks.end:
            self._enter("content")
            if self._thinks_once:
                self.expect_no_reasoning()
        elif marker == marks.start:
            if not self._is_at_start:  # at the start the model repeats what the template has written
                self._show(marker)
        elif marker:
            self._open_or_close(marker)
        return bool(marker)

    def _begin_content(self) -> bool:
        """Look for marks that mean something only before any text."""
        separators = self._calls.separators if self._calls and self._num_calls else ""
        rest = self._buffer.lstrip(string.whitespace + separators)
        self._space += self._buffer[: len(self._buffer) - len(rest)]
        self._buffer = rest
        if self._drops_space or self._forced is not None:
            self._space = self._space[:_MAX_HELD_SPACE]
        elif len(self._space) > _MAX_HELD_SPACE:  # so much of it is text
            self._show("")
            self._is_at_start = False
            return True
        marks = (self._reasoning.start, self._reasoning.end) if self._reasoning else ()
        closers = self._calls.closers if self._calls and (self._num_calls or self._calls.drops_markers) else ()
        found = find_marker(rest, (*marks, *closers))
        if not rest or (not found.marker and found.start == 0):
            return False
        if found.marker and found.start == 0:
            self._buffer = rest[len(found.marker) :]
            self._enter("reasoning" if found.marker in marks[:1] else "content")
        elif self._calls and rest[0] in self._calls.bare:
            self._open("", is_tagged=False)
        else:
            self._is_at_start = False
        return True

    def _enter(self, mode: _Mode) -> None:
        """Go on behind a mark or a call, where text may follow."""
        if self._mode in self._said and self._space.isspace():
            self._gaps.setdefault(self._mode, self._space)
        self._mode = mode
        self._space = ""
        self._drops_space = self._is_at_start = True

    def _open_or_close(self, marker: str) -> None:
        """Go on behind a marker of calls in the midst of a text."""
        assert self._calls is not None
        if marker in self._calls.closers:
            self._enter(self._mode)
        else:
            self._open("" if self._calls.drops_markers else marker, is_tagged=True)

    def _open(self, held: str, *, is_tagged: bool) -> None:
        """Begin to read a call. What is held of white space is text again if it turns out to be none."""
        assert self._calls is not None
        self._is_at_start = False
        self._reader = self._calls.reader(self._tools)
        self._is_tagged, self._held = is_tagged, [held]
        self._has_begun = False

    def _read(self, reader: CallReader) -> bool:
        self._held.append(self._buffer)
        reading = reader.feed(self._buffer)
        self._buffer = ""
        for part in reading.parts:
            self._call(part)
        if reading.state == "open":
            return False
        is_in_tag = self._tag != "none" or self._is_tagged
        text = "".join(self._held)
        end = len(text) - reading.num_rest
        self._reader, self._held, self._has_begun = None, [], False
        self._buffer = text[end:]
        if reading.state == "done":
            assert self._calls is not None
            self._tag = "repeats" if is_in_tag and self._calls.closers else "none"
        elif self._tag != "none":
            self._tag, self._buffer = "closes", text
        else:
            self._show(text[:end])
        return True

    def _go_on_in_tag(self, calls: CallFormat | None) -> bool:
        """Behind a call: one more, or the mark that closes it, before which nothing else means anything.

        A mark that doesn't come soon has been forgotten, and what follows is text.
        """
        assert calls is not None
        rest = self._buffer.lstrip(string.whitespace + ",;")
        space = self._buffer[: len(self._buffer) - len(rest)]
        if self._tag == "repeats" and rest and rest[0] in calls.again and len(space) <= _MAX_SKIPPED:
            self._buffer = rest
            self._open(space, is_tagged=True)
            return True
        marks = (self._reasoning.start, self._reasoning.end) if self._reasoning else ()
        found = find_marker(self._buffer, (*calls.closers, *calls.openers, *marks))
        if not found.marker and found.start <= _MAX_SKIPPED:
            return False
        if found.marker in calls.closers and found.start <= _MAX_SKIPPED:
            self._buffer = self._buffer[found.start + len(found.marker) :]
            self._tag = "none"
        else:
            self._leave_tag()
        return True

    def _leave_tag(self) -> None:
        self._buffer = "".join(self._held) + self._buffer
        self._reader, self._held = None, []
        self._tag = "none"

    def _call(self, part: CallPart) -> None:
        if isinstance(part, CallName):
            self._has_begun = True
            self._enter(self._mode)
            self._events.append(CallStart(self._num_calls, part.name))
            self._num_calls += 1
        else:
            self._events.append(CallArguments(self._num_calls - 1, part.text))

    def _show_up_to(self, markers: tuple[str, ...]) -> str:
        """Take the text before the first marker, and the marker, which is returned; "" if there is none yet."""
        found = find_marker(self._buffer, markers)
        self._show(self._buffer[: found.start])
        self._buffer = self._buffer[found.start + len(found.marker) :]
        return found.marker

    def _show(self, text: str) -> None:
        """Give text out, but for the white space at its end, and at its beginning where that is dropped."""
        text = self._space + text
        if self._drops_space:
            text = self._begin_text(text)
        num_shown = len(text.rstrip())
        if num_shown:
            self._drops_space = self._is_at_start = False
        num_shown = max(num_shown, len(text) - _MAX_HELD_SPACE)
        self._space = text[num_shown:]
        self._emit(text[:num_shown])

    def _begin_text(self, text: str) -> str:
        """Text behind a mark or a call, with the white space that parts it from text of its kind before that."""
        body = text.lstrip()
        if not body:
            return text[:_MAX_HELD_SPACE]
        space = self._gaps.pop(self._mode, text[: len(text) - len(body)][:_MAX_HELD_SPACE])
        return space + body if self._mode in self._said else body

    def _emit(self, text: str) -> None:
        if text:
            self._said.add(self._mode)
            self._events.append(ReasoningText(text) if self._mode == "reasoning" else ContentText(text))

"""Calls that a grammar has forced: ``[{"name": "f", "arguments": {"a": 1}}, ...]``, spaced just like this.

What is here is certain, so arguments go out piece by piece. What is around them is nothing that anybody said, and is
never shown, wherever the answer is cut. ``chiasm.grammar.tools`` makes the grammar.
"""

from __future__ import annotations

import re

from chiasm.parsers.events import CallArguments, CallStart, Event
from chiasm.parsers.json_span import JsonSpan

_HEAD = re.compile(r'(?:\[|\}, )\{"name": "([\w.\-]+)", "arguments": (?=\{)')
_MAX_HEAD = 256  # characters; no head is longer


class ForcedCalls:
    """Reads the calls of one answer."""

    def __init__(self) -> None:
        self._num_calls = 0
        self._pending = ""  # between two calls' arguments
        self._span: JsonSpan | None = None

    def feed(self, text: str) -> list[Event]:
        """What more text makes certain."""
        events: list[Event] = []
        while text:
            if self._span is None:
                head = self._begin(text)
                if head is None:
                    break
                events.append(CallStart(self._num_calls - 1, head[1]))
                text, self._pending = self._pending[head.end() :], ""
                continue
            end = self._span.feed(text)
            events.append(CallArguments(self._num_calls - 1, text[:end]))
            text = "" if end is None else text[end:]
            self._span = self._span if end is None else None
        return events

    def _begin(self, text: str) -> re.Match[str] | None:
        """Start the next call if its head is complete."""
        self._pending += text
        head = _HEAD.match(self._pending[:_MAX_HEAD])
        if head is not None:
            self._num_calls += 1
            self._span = JsonSpan()
        return head

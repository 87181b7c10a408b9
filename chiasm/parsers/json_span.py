"""Where a JSON object ends, in text that comes in pieces."""

from __future__ import annotations

import re

MAX_DEPTH = 64

_OUTSIDE = re.compile(r'[{}\[\]"<]')
_INSIDE = re.compile(r'["\\]')


class JsonSpan:
    """Follows brackets and strings of one object; whether it is valid JSON is for a decoder to say.

    Each character is looked at once.

    Attributes:
        is_broken: whether this can't be an object: it begins with something else, is nested too deep, or breaks off
            at a ``<``, with which a model's marks begin and which JSON has in strings alone.
    """

    def __init__(self) -> None:
        self.is_broken = False
        self._depth = 0
        self._is_in_string = False
        self._is_escaped = False

    @property
    def is_open(self) -> bool:
        """Whether the object has begun and goes on."""
        return self._depth > 0

    def feed(self, text: str) -> int | None:
        """Take in text; returns where in it the object ends or breaks, or None as long as it goes on."""
        position = 0
        if self._depth == 0:
            position = len(text) - len(text.lstrip())
            if position < len(text) and text[position] != "{":
                self.is_broken = True
                return position
        while position < len(text):
            if self._is_in_string:
                position = self._skip_string(text, position)
                continue
            found = _OUTSIDE.search(text, position)
            if found is None:
                return None
            position = found.end()
            if found[0] == "<":
                self.is_broken = True
                return position - 1
            self._take(found[0])
            if self._depth == 0 or self.is_broken:
                return position
        return None

    def _take(self, mark: str) -> None:
        if mark == '"':
            self._is_in_string = True
        else:
            self._depth += 1 if mark in "{[" else -1
            self.is_broken = self._depth > MAX_DEPTH

    def _skip_string(self, text: str, position: int) -> int:
        """Behind the end of the string that ``position`` is in, or at the end of the text."""
        if self._is_escaped:
            self._is_escaped = False
            position += 1
        while found := _INSIDE.search(text, position):
            position = found.end()
            if found[0] == '"':
                self._is_in_string = False
                return position
            if position == len(text):
                self._is_escaped = True
                return position
            position += 1
        return len(text)

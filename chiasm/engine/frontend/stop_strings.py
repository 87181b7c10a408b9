"""The strings that end an answer, found in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class TextDelta(NamedTuple):
    """New text of an answer, and the stop string that ended it, if one did."""

    text: str
    stop: str | None = None


class StopStrings:
    """Lets text through up to the first stop string, and holds back what may become one.

    The string that is complete first ends the answer, of several that end together the longest; so the answer does
    not depend on how its text was cut into pieces.

    Args:
        stops: the strings, none empty.
        keeps_stop: whether the stop string stays at the end of the text.
    """

    def __init__(self, stops: Sequence[str], *, keeps_stop: bool) -> None:
        self._matchers = [_Matcher(stop) for stop in stops]
        self._keeps_stop = keeps_stop
        self._held = ""

    def add(self, text: str, *, may_stop: bool) -> TextDelta:
        """Take in text; returns what is certain now. Before the answer may stop, a stop string is just text."""
        buffer = self._held + text
        for end, char in enumerate(text, start=len(self._held) + 1):
            complete = [matcher.stop for matcher in self._matchers if matcher.step(char)]
            if complete and may_stop:
                stop = max(complete, key=len)
                self._held = ""
                return TextDelta(buffer[: end if self._keeps_stop else end - len(stop)], stop)
        num_held = max((matcher.num_matched for matcher in self._matchers), default=0)
        certain = len(buffer) - num_held
        self._held = buffer[certain:]
        return TextDelta(buffer[:certain])

    def flush(self) -> str:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return held


class _Matcher:
    """Finds one string, each character looked at once (Knuth, Morris and Pratt 1977).

    Attributes:
        stop: the string.
        num_matched: how many of its first characters the text so far ends with.
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.num_matched = 0
        self._borders = [0, 0]  # for each number of characters matched, how many remain if the next one differs

    def step(self, char: str) -> bool:
        """Take in a character; returns whether the string is complete with it."""
        while self.num_matched and self.stop[self.num_matched] != char:
            self.num_matched = self._border(self.num_matched)
        if self.stop[self.num_matched] == char:
            self.num_matched += 1
        if self.num_matched < len(self.stop):
            return False
        self.num_matched = self._border(self.num_matched)
        return True

    def _border(self, length: int) -> int:
        # Worked out only as far as the text has matched: a stop string may be long.
        borders, stop = self._borders, self.stop
        while len(borders) <= length:
            last, border = stop[len(borders) - 1], borders[-1]
            while border and stop[border] != last:
                border = borders[border]
            borders.append(border + (stop[border] == last))
        return borders[length]

"""Finding markers in text that comes in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Found(NamedTuple):
    """The first marker in a text.

    Attributes:
        start: where it begins, or up to where the text has none and can't begin one either.
        marker: the marker; "" if there is none yet.
    """

    start: int
    marker: str


def find_marker(text: str, markers: Sequence[str]) -> Found:
    """The marker that begins first in ``text``, of several that begin there the longest."""
    found = [(text.find(marker), -len(marker), marker) for marker in markers]
    starts = [entry for entry in found if entry[0] >= 0]
    if starts:
        start, _, marker = min(starts)
        return Found(start, marker)
    return Found(len(text) - _num_undecided(text, markers), "")


def _num_undecided(text: str, markers: Sequence[str]) -> int:
    """Characters at the end of ``text`` that may be the beginning of a marker."""
    longest = min(len(text), max(map(len, markers), default=1) - 1)
    for length in range(longest, 0, -1):
        end = text[-length:]
        if any(marker.startswith(end) for marker in markers):
            return length
    return 0

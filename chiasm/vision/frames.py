"""Items as units, and where a unit's tokens stand in a prompt. Pure functions, no torch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import NamedTuple

from chiasm.schema.media import MediaItem, Unit


class PlacedUnit(NamedTuple):
    """A unit at its place: its tokens are ``start`` to ``stop`` of the prompt."""

    unit: Unit
    start: int
    stop: int


def placed_units(items: Sequence[MediaItem]) -> Iterator[PlacedUnit]:
    """Every unit of a prompt, in order."""
    for item in items:
        start = item.offset
        for unit in item.units:
            yield PlacedUnit(unit, start, start + unit.num_tokens)
            start += unit.num_tokens


def items_between(items: Sequence[MediaItem], start: int, stop: int) -> Iterator[MediaItem]:
    """The items that have a token in positions ``start`` to ``stop`` (exclusive), found without a look at others."""
    first = bisect_right(items, start, key=attrgetter("end"))
    return takewhile(lambda item: item.offset < stop, (items[index] for index in range(first, len(items))))


def units_between(items: Sequence[MediaItem], start: int, stop: int) -> list[PlacedUnit]:
    """The units that have a token in positions ``start`` to ``stop`` (exclusive)."""
    found = []
    for item in items_between(items, start, stop):
        end = item.offset
        for unit in item.units:
            begin, end = end, end + unit.num_tokens
            if begin >= stop:
                break
            if end > start:  # only now is a value made: this is asked for every block of prompts with long videos
                found.append(PlacedUnit(unit, begin, end))
    return found

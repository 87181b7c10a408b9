"""Items as units, and where a unit's tokens stand in a prompt. Pure functions, no torch."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise, takewhile
from operator import attrgetter
from typing import NamedTuple

import msgspec

from chiasm.schema.media import MediaItem, Unit

NEVER = 2**62
"""A position that no token reaches."""


class PlacedUnit(NamedTuple):
    """A unit and the tokens ``start`` to ``stop`` of the prompt that read its features.

    Those are its own placeholders, or where text attends to it all tokens up to the last that does.
    """

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


class PlacedUnits:
    """The units of a prompt, found by position without a look at others; a long video has thousands.

    Args:
        items: of the prompt, in order.
    """

    def __init__(self, items: Sequence[MediaItem]) -> None:
        self.items = items
        self._is_seen = bool(items) and items[0].seen_until is not None
        self._placed = list(_seen_units(items) if self._is_seen else placed_units(items))
        self._starts = [placed.start for placed in self._placed]
        self._stops = [placed.stop for placed in self._placed]

    def between(self, start: int, stop: int) -> list[PlacedUnit]:
        """The units whose features tokens at positions ``start`` to ``stop`` (exclusive) read.

        Where text attends to units, those that are needed there or later: they are kept from the first token on.
        """
        if self._is_seen:
            return [placed for placed in self._placed if start < placed.stop]
        return self._placed[bisect_right(self._stops, start) : bisect_left(self._starts, stop)]

    def beginning(self, start: int, stop: int) -> list[PlacedUnit]:
        """The units that are read from a position in ``start`` to ``stop`` (exclusive) on."""
        return self._placed[bisect_left(self._starts, start) : bisect_left(self._starts, stop)]


def _seen_units(items: Sequence[MediaItem]) -> Iterator[PlacedUnit]:
    for item in items:
        assert item.seen_until is not None
        yield from (PlacedUnit(unit, 0, item.seen_until) for unit in item.units)


def with_readers(items: Sequence[MediaItem]) -> tuple[MediaItem, ...]:
    """Items that text attends to, with how far each is seen.

    A token sees the image before it, and those that stand before that one without any text between them. So a later
    image takes the place of earlier ones, unless it follows them at once.

    Args:
        items: in order, of one placeholder each.
    """
    placed = []
    seen_until = NEVER
    for item, after in zip(reversed(items), (None, *reversed(items)), strict=False):
        if after is not None and after.offset != item.end:
            seen_until = after.offset
        placed.append(msgspec.structs.replace(item, seen_until=seen_until))
    return tuple(reversed(placed))


class SeenItems(NamedTuple):
    """Items that tokens ``start`` to ``stop`` of a prompt attend to; at least one.

    Attributes:
        start: the first token.
        stop: one past the last one.
        items: indices.
        is_before: whether the tokens are before the first item. Those were meant to see none, but attend to all rows
            of all items, as transformers' classes have it.
    """

    start: int
    stop: int
    items: tuple[int, ...]
    is_before: bool


def seen_between(items: Sequence[MediaItem], start: int, stop: int) -> list[SeenItems]:
    """What tokens at positions ``start`` to ``stop`` (exclusive) attend to, in runs that see the same."""
    if not items or items[0].seen_until is None:
        return []
    found = []
    first = items[0].offset
    if start < first:
        found.append(SeenItems(start, min(stop, first), tuple(range(len(items))), is_before=True))
    borders = sorted({start, stop, *(item.offset for item in items)})
    for low, high in pairwise(border for border in borders if max(start, first) <= border <= stop):
        seen = [index for index, item in enumerate(items) if item.offset <= low < (item.seen_until or 0)]
        found.append(SeenItems(low, high, tuple(seen), is_before=False))
    return found

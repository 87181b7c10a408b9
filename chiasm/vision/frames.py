"""Items as units, and where a unit's tokens stand in a prompt. Pure functions, no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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


def units_between(items: Sequence[MediaItem], start: int, stop: int) -> list[PlacedUnit]:
    """The units that have a token in positions ``start`` to ``stop`` (exclusive)."""
    if not items or start >= items[-1].end:
        return []
    return [placed for placed in placed_units(items) if placed.start < stop and placed.stop > start]

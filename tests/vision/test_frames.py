"""Where units stand in a prompt."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chiasm.schema.media import MediaItem, PixelRef, Unit
from chiasm.vision.frames import items_between, placed_units, units_between


@st.composite
def _prompts(draw: st.DrawFn) -> list[MediaItem]:
    items, position = [], 0
    for gap, count, length in draw(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(1, 5)))):
        units = tuple(Unit(f"{position}/{i}", (2, 2 * length), length, PixelRef("", 0, 4, 1)) for i in range(count))
        items.append(MediaItem("video", position + gap, count * length, units))
        position = items[-1].end
    return items


@given(items=_prompts(), start=st.integers(0, 60), length=st.integers(1, 30))
def test_units_between_are_those_that_have_a_token_there(items: list[MediaItem], start: int, length: int) -> None:
    stop = start + length
    expected = [placed for placed in placed_units(items) if placed.start < stop and placed.stop > start]
    assert units_between(items, start, stop) == expected
    assert list(items_between(items, start, stop)) == [i for i in items if i.offset < stop and i.end > start]

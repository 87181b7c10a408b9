"""Items cut into units, and back together."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chiasm.multimodal.hashing import unit_key
from chiasm.multimodal.units import cut_into_units
from chiasm.schema.media import PixelRef, ProcessedItem
from chiasm.vision.frames import placed_units
from tests.multimodal.specs import QWEN

_ROW_BYTES = 6


@given(
    time=st.integers(1, 7), height=st.integers(1, 5), width=st.integers(1, 5), first_row=st.integers(0, 9),
    offset=st.integers(0, 50),
)  # fmt: skip
def test_units_laid_end_to_end_are_the_item(time: int, height: int, width: int, first_row: int, offset: int) -> None:
    thw = (time, 2 * height, 2 * width)
    num_rows = time * 4 * height * width
    rows = np.random.default_rng(0).integers(0, 2, (num_rows, _ROW_BYTES), dtype=np.uint8)
    grid = thw[1:]
    keys = [unit_key(part, grid, QWEN) for part in np.split(rows, time)]
    units = cut_into_units(keys, grid, QWEN, PixelRef("file", first_row, num_rows, _ROW_BYTES))
    item = ProcessedItem("image", sum(unit.num_tokens for unit in units), units).placed_at(offset)
    assert item.thw == thw
    assert item.num_tokens == num_rows // 4
    ends = [(placed.start, placed.stop) for placed in placed_units([item])]
    assert [start for start, _ in ends] == [offset, *(stop for _, stop in ends[:-1])]
    assert ends[-1][1] == item.end
    first = first_row
    for unit in units:
        assert (unit.pixels.path, unit.pixels.first_row, unit.pixels.num_rows) == ("file", first, unit.num_patches)
        own = rows[first - first_row :][: unit.num_patches]
        assert unit.key == unit_key(own, unit.grid, QWEN)
        first += unit.num_patches
    assert first == first_row + num_rows

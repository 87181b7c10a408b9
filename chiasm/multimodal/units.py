"""Items cut into units: an image is one, a video one for each temporal slice. A pure function."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chiasm.multimodal.hashing import unit_key
from chiasm.schema.media import PatchProcessorSpec, PixelRef, Unit


def cut_into_units(
    rows: npt.NDArray[np.uint8], thw: tuple[int, int, int], spec: PatchProcessorSpec, pixels: PixelRef
) -> tuple[Unit, ...]:
    """The units of an item in order of time; laid end to end their tokens are the item's (``vision.frames``).

    Args:
        rows: [time x rows x columns of the grid, row_bytes] uint8, contiguous, slice after slice.
        thw: the item's patch grid as (time, rows, columns).
        spec: how pictures become patches.
        pixels: where the rows are.
    """
    time, height, width = thw
    num_rows = height * width
    assert len(rows) == pixels.num_rows == time * num_rows
    units = []
    for first in range(0, len(rows), num_rows):
        key = unit_key(rows[first : first + num_rows], (height, width), spec)
        own = PixelRef(pixels.path, pixels.first_row + first, num_rows, pixels.row_bytes)
        units.append(Unit(key, (height, width), num_rows // spec.merge_size**2, own))
    return tuple(units)

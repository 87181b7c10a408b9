"""Items cut into units: an image is one, a video one for each temporal slice. A pure function."""

from __future__ import annotations

from collections.abc import Sequence

from chiasm.schema.media import PatchProcessorSpec, PixelRef, Unit


def cut_into_units(
    keys: Sequence[str], grid: tuple[int, int], spec: PatchProcessorSpec, pixels: PixelRef
) -> tuple[Unit, ...]:
    """The units of an item in order of time; laid end to end their tokens are the item's (``vision.frames``).

    Args:
        keys: of each slice of the item (``hashing.unit_key``).
        grid: (rows, columns) of the patch grid of every slice.
        spec: how pictures become patches.
        pixels: where the rows of all slices are, slice after slice.
    """
    num_rows = grid[0] * grid[1]
    assert pixels.num_rows == len(keys) * num_rows
    refs = [
        PixelRef(pixels.path, pixels.first_row + index * num_rows, num_rows, pixels.row_bytes)
        for index in range(len(keys))
    ]
    return tuple(Unit(key, grid, num_rows // spec.merge_size**2, ref) for key, ref in zip(keys, refs, strict=True))

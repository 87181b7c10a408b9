"""Items cut into units: an image is one or one for each tile, a video one for each slice. A pure function."""

from __future__ import annotations

from collections.abc import Sequence

from chiasm.schema.media import PatchLayout, PixelRef, Unit


def cut_into_units(
    keys: Sequence[str], grid: tuple[int, int], spec: PatchLayout, pixels: PixelRef
) -> tuple[Unit, ...]:
    """The units of an item in order; laid end to end their tokens are the item's (``vision.frames``).

    Args:
        keys: of each slice or tile of the item (``hashing.unit_key``).
        grid: (rows, columns) of the patch grid of each of them.
        spec: sizes of patches and blocks.
        pixels: where the rows of all of them are, one after another.
    """
    num_rows = grid[0] * grid[1]
    assert pixels.num_rows == len(keys) * num_rows
    refs = [
        PixelRef(pixels.path, pixels.first_row + index * num_rows, num_rows, pixels.row_bytes)
        for index in range(len(keys))
    ]
    return tuple(Unit(key, grid, num_rows // spec.merge_size**2, ref) for key, ref in zip(keys, refs, strict=True))

"""Cutting pictures into rows of patches, in the order in which the encoder merges them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chiasm.schema.media import PatchLayout


def cut_into_patches(frames: Sequence[npt.NDArray[np.uint8]], spec: PatchLayout) -> npt.NDArray[np.uint8]:
    """Flatten a picture, or the frames of a slice, into one row per patch, the patches of a merge block together.

    A row holds (channel, frame, y, x). The values stay what they are: scaling and normalisation are folded into the
    model's first matrix.

    Args:
        frames: each [3, height, width] uint8, both sides multiples of a merge block's side. Of fewer than a patch
            has, the last stands for those that are missing.
        spec: sizes of patches and blocks.

    Returns:
        [num_patches, 3 * temporal_patch_size * patch_size**2] uint8, contiguous.
    """
    channels, height, width = frames[0].shape
    side, merge, depth = spec.patch_size, spec.merge_size, spec.temporal_patch_size
    block = side * merge
    # block row, block column, row in it, column in it, c, frame, y, x
    patches = np.empty((height // block, width // block, merge, merge, channels, depth, side, side), np.uint8)
    for index in range(depth):
        planes = frames[min(index, len(frames) - 1)]
        grid = planes.reshape(channels, height // block, merge, side, width // block, merge, side)
        patches[:, :, :, :, :, index] = grid.transpose(1, 4, 2, 5, 0, 3, 6)
    return patches.reshape(-1, spec.row_bytes)

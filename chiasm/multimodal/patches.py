"""Cutting a picture into rows of patches, in the order in which the encoder merges them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from chiasm.schema.media import PatchProcessorSpec


def cut_into_patches(planes: npt.NDArray[np.uint8], spec: PatchProcessorSpec) -> npt.NDArray[np.uint8]:
    """Flatten a picture into one row per patch, the patches of a merge block next to each other.

    A row holds (channel, frame, y, x); the one picture stands for every frame of the patch. The values stay what
    they are: scaling and normalisation are folded into the model's first matrix.

    Args:
        planes: [3, height, width] uint8, both sides multiples of a merge block's side.
        spec: sizes of patches and blocks.

    Returns:
        [num_patches, 3 * temporal_patch_size * patch_size**2] uint8, contiguous.
    """
    channels, height, width = planes.shape
    side, merge = spec.patch_size, spec.merge_size
    block = side * merge
    grid = planes.reshape(channels, height // block, merge, side, width // block, merge, side)
    patches = grid.transpose(1, 4, 2, 5, 0, 3, 6)  # block row, block column, row in it, column in it, c, y, x
    frames = np.broadcast_to(
        patches[:, :, :, :, :, None], (*patches.shape[:5], spec.temporal_patch_size, *patches.shape[5:])
    )
    return np.ascontiguousarray(frames).reshape(-1, spec.row_bytes)

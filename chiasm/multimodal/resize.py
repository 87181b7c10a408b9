"""Resizing pictures, to the last bit as the models' own preprocessing does it."""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

Filter = Literal["bicubic", "bilinear"]


def resize(pixels: npt.NDArray[np.uint8], height: int, width: int, kind: Filter) -> npt.NDArray[np.uint8]:
    """Resize with an antialiased filter in fixed-point arithmetic.

    Args:
        pixels: [rows, columns, 3] uint8; must be writable memory (torch refuses to wrap anything else quietly).
        height: wanted rows.
        width: wanted columns.
        kind: of the filter.

    Returns:
        [3, height, width] uint8, planes first.
    """
    planes = torch.from_numpy(pixels).permute(2, 0, 1).unsqueeze(0)
    if planes.shape[2:] != (height, width):
        planes = F.interpolate(planes, size=(height, width), mode=kind, align_corners=False, antialias=True)
    return planes[0].numpy()

"""The key of a unit: a digest of everything that its features depend on."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
from blake3 import blake3

from chiasm.schema.media import PatchProcessorSpec

_FORMAT = b"chiasm unit 1"


def unit_key(rows: npt.NDArray[np.uint8], grid: tuple[int, int], spec: PatchProcessorSpec) -> str:
    """Digest of a unit's pixels, its grid and the layout of its rows.

    The limits on the area are left out: they decided the size of the picture, which the grid already tells.

    Args:
        rows: [rows x columns of the grid, row_bytes] uint8, contiguous.
        grid: (rows, columns) of the patch grid; the same rows in another grid are another picture.
        spec: sizes of patches and blocks.

    Returns:
        64 hexadecimal digits.
    """
    layout = struct.pack("<5Q", *grid, spec.patch_size, spec.merge_size, spec.temporal_patch_size)
    return _framed_digest((_FORMAT, layout, rows.data.cast("B")))


def _framed_digest(fields: Iterable[bytes | memoryview]) -> str:
    """BLAKE3 over the fields, each preceded by its length, so that no two lists of fields look alike."""
    digest = blake3()
    for field in fields:
        digest.update(struct.pack("<Q", len(field)))
        digest.update(field)
    return str(digest.hexdigest())

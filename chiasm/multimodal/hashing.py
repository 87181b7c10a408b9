"""Names by content: the key of a unit, from all that its features depend on, and the digest of media as they came."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from chiasm.multimodal.sources import MediaSource
from chiasm.schema.media import MediaSpec, PatchLayout

_UNIT_FORMAT = b"chiasm unit 1"
_SOURCE_FORMAT = b"chiasm source 1"


def unit_key(rows: npt.NDArray[np.uint8], grid: tuple[int, int], spec: PatchLayout) -> str:
    """Digest of a unit's pixels, its grid and the layout of its rows: with them the tower's input is given.

    The limits on the area are left out: they decided the size of the picture, which the grid already tells. So is
    what an engine has one of and keeps for life: the model with its normalisation, its type and how its encoder is
    spread. A key means nothing outside of its engine, and caches end with it. Nor does it matter where in a clip a
    unit is, or whether it is a picture by itself: attention in the tower does not cross units, and positions in time
    are the language model's.

    Args:
        rows: [rows x columns of the grid, row_bytes] uint8, contiguous.
        grid: (rows, columns) of the patch grid; the same rows in another grid are another picture.
        spec: sizes of patches and blocks.

    Returns:
        64 hexadecimal digits.
    """
    layout = struct.pack("<5Q", *grid, spec.patch_size, spec.merge_size, spec.temporal_patch_size)
    return _framed_digest((_UNIT_FORMAT, layout, rows.data.cast("B")))


def source_digest(source: MediaSource, spec: MediaSpec) -> str:
    """Digest of media as they came and of everything else that decides what the preprocessing pool makes of them.

    What is one per server is left out: limits on files and pictures, which refuse without changing a result.

    Args:
        source: not of kind "file", whose payload is only a path.
        spec: how it becomes patches, with what a request may have changed; tells pictures and videos apart, too.

    Returns:
        64 hexadecimal digits.
    """
    assert source.kind != "file"
    described = msgspec.msgpack.encode((source.kind, source.shape, source.times, spec))
    return _framed_digest((_SOURCE_FORMAT, described, source.payload))


def _framed_digest(fields: Iterable[bytes | memoryview]) -> str:
    """BLAKE3 over the fields, each preceded by its length, so that no two lists of fields look alike."""
    digest = blake3()
    for field in fields:
        digest.update(struct.pack("<Q", len(field)))
        digest.update(field)
    return str(digest.hexdigest())

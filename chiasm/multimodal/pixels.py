"""Files of patch rows, by which pixels travel between processes: written whole and once, read by the row."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chiasm.errors import OverloadedError
from chiasm.schema.media import PixelRef, ProcessedItem

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


class PixelsLostError(RuntimeError):
    """The file behind a ``PixelRef`` is gone or too short."""


def new_file_name() -> str:
    """A name for a file of pixels that nobody can guess."""
    return f"{secrets.token_hex(16)}.pixels"


def write_rows(parts: Iterable[npt.NDArray[np.uint8]], path: Path) -> PixelRef:
    """Write rows into a new file that only this user can read, part by part as they are made.

    Args:
        parts: each [num_rows, row_bytes] uint8; at least one.
        path: the file, which must not exist.

    Raises:
        OverloadedError: if the folder has no space left.
        Whatever making a part raises. Nothing of the file remains then.
    """
    # Written, not mapped: in a full memory-backed folder a write fails cleanly, a store into a mapping kills us.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    num_rows = row_bytes = 0
    try:
        with os.fdopen(descriptor, "wb", buffering=0):
            for part in parts:
                _write_all(descriptor, np.ascontiguousarray(part).data.cast("B"))
                num_rows, row_bytes = num_rows + part.shape[0], part.shape[1]
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            raise OverloadedError("no space is left for the pixels of this item.") from error
        raise
    return PixelRef(path=str(path), first_row=0, num_rows=num_rows, row_bytes=row_bytes)


def _write_all(descriptor: int, data: memoryview) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def read_rows(ref: PixelRef) -> npt.NDArray[np.uint8]:
    """Map the rows that ``ref`` names; only pages that are looked at are read.

    Returns:
        [num_rows, row_bytes] uint8. Writes to it stay private to this process.

    Raises:
        PixelsLostError: if the file is missing or does not hold all these rows.
    """
    try:
        # "c" (copy on write) gives writable memory, which torch can wrap without a copy or a warning.
        rows = np.memmap(
            ref.path,
            dtype=np.uint8,
            mode="c",
            offset=ref.first_row * ref.row_bytes,
            shape=(ref.num_rows, ref.row_bytes),
        )
    except (OSError, ValueError) as error:
        end = ref.first_row + ref.num_rows
        raise PixelsLostError(
            f"{ref.path} does not hold rows {ref.first_row} to {end} of {ref.row_bytes} bytes."
        ) from error
    return rows.view(np.ndarray)


def discard_pixels(item: ProcessedItem) -> None:
    """Delete the files of an item; mappings that are still in use stay valid. Deleting twice does no harm."""
    for path in {unit.pixels.path for unit in item.units}:
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()

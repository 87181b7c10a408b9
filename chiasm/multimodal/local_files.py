"""Reading local files that a request names, only from below the one folder that the operator allows."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

from chiasm.errors import UserError

# Linux passes through a folder without reading it, for which its user may lack the permission.
_PASS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY


def read_local_file(path: bytes, allowed_folder: str | None, *, max_bytes: int, param: str | None = None) -> bytes:
    """Read a regular file below the allowed folder.

    Args:
        path: an absolute path; may hold ``..`` and symbolic links as long as it ends up below the folder.
        allowed_folder: None refuses every file.
        max_bytes: largest file.
        param: the request's field that names the file, for errors.

    Raises:
        UserError: if files are not allowed, the path leads out of the folder, it is not a readable regular file, or
            the file is too large. The message tells nothing about what is outside of the folder.
    """
    if not allowed_folder:
        message = "file: URLs are off; the operator can allow one folder with --allowed-local-media-path."
        raise UserError(message, param=param)
    resolved, folder = _resolve(path), Path(allowed_folder).resolve()
    if resolved is None or not resolved.is_relative_to(folder):
        raise UserError("the file: URL leads out of the folder that this server allows.", param=param)
    try:
        descriptor = _open_below(folder, resolved.relative_to(folder).parts)
    except OSError as error:
        raise UserError("the file that the file: URL names can't be read.", param=param) from error
    return _read_regular(descriptor, max_bytes, param)


def _resolve(path: bytes) -> Path | None:
    try:
        return Path(os.fsdecode(path)).resolve()
    except (OSError, RuntimeError):  # a loop of links (RuntimeError before Python 3.13), a name that is too long
        return None


def _open_below(folder: Path, parts: Sequence[str]) -> int:
    """Open a resolved path step by step: a link in it was put in place just now, and none is followed.

    Raises:
        OSError: for a link, what is missing, and what can't be read.
    """
    descriptor = os.open(folder, _PASS | os.O_CLOEXEC)
    for depth, part in enumerate(parts, start=1):
        # O_NONBLOCK: opening a named pipe would wait for a writer.
        kind = _PASS if depth < len(parts) else os.O_RDONLY | os.O_NONBLOCK
        above = descriptor
        try:
            descriptor = os.open(part, kind | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
        finally:
            os.close(above)
    return descriptor


def _read_regular(descriptor: int, max_bytes: int, param: str | None) -> bytes:
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise UserError("the file: URL must name a regular file.", param=param)
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(max_bytes + 1)  # not by its stated size: it may grow meanwhile
    finally:
        os.close(descriptor)
    if len(data) > max_bytes:
        raise UserError(f"the local file must be at most {max_bytes} bytes.", param=param, status=422)
    return data

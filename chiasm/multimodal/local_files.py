"""Reading local files that a request names, only from below the one folder that the operator allows."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from chiasm.errors import UserError


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
    resolved = _resolve(path)
    if resolved is None or not resolved.is_relative_to(Path(allowed_folder).resolve()):
        raise UserError("the file: URL leads out of the folder that this server allows.", param=param)
    return _read_regular(resolved, max_bytes, param)


def _resolve(path: bytes) -> Path | None:
    try:
        return Path(os.fsdecode(path)).resolve()
    except (OSError, RuntimeError):  # a loop of links (RuntimeError before Python 3.13), a name that is too long
        return None


def _read_regular(path: Path, max_bytes: int, param: str | None) -> bytes:
    # O_NOFOLLOW: the path is resolved, so a link here was put in place just now. O_NONBLOCK: opening a named pipe
    # would wait for a writer.
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise UserError("the file that the file: URL names can't be read.", param=param) from error
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

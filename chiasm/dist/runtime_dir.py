"""The private folder of one engine: its sockets and the pixels in flight.

It is memory-backed where the system allows it. Every child process knows its path and removes it when it sees the
parent die, so that nothing is left behind even after ``kill -9``.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from pathlib import Path

_MEMORY_BACKED = Path("/dev/shm")  # noqa: S108 - only a parent folder; ours inside it is private (0700)
_MIN_FREE_BYTES = 1 << 30
_PREFIX = "chiasm-"
# Sockets live in it. A Unix socket's path has at most 103 bytes (macOS; 107 on Linux), of which our folder's name
# takes 16 with its slash and eight random characters, and the longest socket's name 26.
_MAX_PARENT_BYTES = 103 - 16 - 26


def create_runtime_dir() -> Path:
    """Make a new folder of mode 0700; it is removed when this process exits.

    Returns:
        Its path, in shared memory if that has at least 1 GiB free, else in the system's temporary folder.
    """
    path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=_pick_parent()))
    atexit.register(remove_runtime_dir, path, os.getpid())
    return path


def remove_runtime_dir(path: Path, owner_pid: int | None = None) -> None:
    """Remove the folder; does nothing in a forked copy of its owner."""
    if owner_pid is None or owner_pid == os.getpid():
        shutil.rmtree(path, ignore_errors=True)


def _pick_parent() -> str | None:
    if os.access(_MEMORY_BACKED, os.W_OK) and shutil.disk_usage(_MEMORY_BACKED).free >= _MIN_FREE_BYTES:
        return str(_MEMORY_BACKED)
    default = tempfile.gettempdir()
    return default if len(os.fsencode(default)) <= _MAX_PARENT_BYTES else "/tmp"  # noqa: S108 - see above

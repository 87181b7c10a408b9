"""Files and folders that a command writes, named by its options."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec

from chiasm.errors import UserError


def check_writable(name: str, file: Path) -> None:
    """Find out before minutes of measuring; leaves no file behind.

    Raises:
        UserError: if it can't be written.
    """
    is_new = not file.exists()
    write_file(name, file, lambda path: path.open("ab").close())
    if is_new:
        file.unlink()


def check_folder(name: str, folder: Path) -> None:
    """The same for a folder, which is made if it isn't there.

    Raises:
        UserError: if no file can be written into it.
    """

    def probe(path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()

    write_file(name, folder, probe)


def write_file(name: str, file: Path, write: Callable[[Path], object]) -> None:
    """Have ``write`` write it.

    Raises:
        UserError: if it can't be written.
    """
    try:
        write(file)
    except OSError as error:
        raise UserError(f"{name} {file} can't be written: {error.strerror}.", param=name) from error


def write_json(name: str, file: Path, value: object) -> None:
    """Write what a command has found, for people to read, too.

    Raises:
        UserError: if it can't be written.
    """
    text = msgspec.json.format(msgspec.json.encode(value))
    write_file(name, file, lambda path: path.write_bytes(text))

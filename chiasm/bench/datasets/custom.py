"""Requests that a user wrote: JSON lines."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chiasm.bench.datasets.sample import Sample, data_url, media_part, text_part
from chiasm.datasets.rows import Row, find_files, iterate_rows
from chiasm.errors import UserError, refuse

_MEDIA = {"image_files": "image", "video_files": "video"}


def custom_samples(path: str, output_len: int) -> Iterator[Sample]:
    """The requests of a file.

    Args:
        path: JSON lines. An object has ``prompt``, and ``image_files`` and ``video_files`` if there are any, whose
            paths begin at the file's folder; or ``content``, the parts of a message. ``output_tokens`` goes before
            ``output_len``.
        output_len: most tokens of an answer.

    Raises:
        UserError: naming the row at fault.
    """
    folder = find_files(path, "train")[0].parent
    for row in iterate_rows(path, "train"):
        length = row.get("output_tokens", output_len)
        if type(length) is not int or length < 1:
            refuse("output_tokens", length, "at least 1")
        yield Sample(_content(row, folder), length)


def _content(row: Row, folder: Path) -> list[dict[str, Any]]:
    if "content" in row:
        if not isinstance(row["content"], list):
            refuse("content", row["content"], "a list of parts")
        return row["content"]
    if not isinstance(row.get("prompt"), str):
        refuse("prompt", row.get("prompt"), "a text, or content in its place")
    media = [media_part(kind, _url(folder / file)) for key, kind in _MEDIA.items() for file in row.get(key, ())]
    return [text_part(row["prompt"]), *media]


def _url(file: Path) -> str:
    if not file.is_file():
        raise UserError(f"There is no file {file}.", param="dataset_path")
    return data_url(mimetypes.guess_type(file.name)[0] or "application/octet-stream", file.read_bytes())

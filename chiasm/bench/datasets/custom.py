"""Requests that a user wrote: JSON lines."""

from __future__ import annotations

import mimetypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chiasm.bench.datasets.sample import Sample, media_part, text_part
from chiasm.datasets.pictures import data_url
from chiasm.datasets.rows import Row, find_files, iterate_rows
from chiasm.errors import UserError, refuse, shorten

_MEDIA = {"image_files": "image", "video_files": "video"}
_KINDS = ("image", "video")
_OUTPUT_LEN = 256
_SCHEMES = ("data:", "http://", "https://", "file://")


def custom_samples(path: str, output_len: int | None) -> Iterator[Sample]:
    """The requests of a file.

    Args:
        path: JSON lines. An object has ``prompt``, and ``image_files`` and ``video_files`` if there are any, whose
            paths begin at the file's folder; or ``content``, the parts of a message, in which a path may stand for a
            URL, and ``{"type": "image", "image": PATH}`` for a part with one, as in vLLM's ``custom_image``.
        output_len: most tokens of an answer; if None, a row's ``output_tokens``, 256 where it has none.

    Raises:
        UserError: naming the row at fault.
    """
    folder = find_files(path, "train")[0].parent
    for row in iterate_rows(path, "train"):
        length = output_len or row.get("output_tokens", _OUTPUT_LEN)
        if type(length) is not int or length < 1:
            refuse("output_tokens", length, "at least 1")
        yield Sample(_content(row, folder), length)


def _content(row: Row, folder: Path) -> list[dict[str, Any]]:
    if "content" in row:
        if not isinstance(row["content"], list):
            refuse("content", row["content"], "a list of parts")
        return [_part(part, folder) for part in row["content"]]
    if not isinstance(row.get("prompt"), str):
        refuse("prompt", row.get("prompt"), "a text, or content in its place")
    media = [media_part(kind, _url(folder / file)) for key, kind in _MEDIA.items() for file in _paths(row, key)]
    return [text_part(row["prompt"]), *media]


def _paths(row: Row, key: str) -> list[str]:
    paths = row.get(key) or []
    if not isinstance(paths, list) or not all(isinstance(path, str) for path in paths):
        refuse(key, paths, "a list of paths")
    return paths


def _part(part: Any, folder: Path) -> dict[str, Any]:
    """A part as the API takes it; paths become the files' content."""
    if not isinstance(part, dict):
        refuse("content", part, "a list of objects")
    for kind in _KINDS:
        place = part.get(kind, part.get(f"{kind}_url"))
        url = place.get("url") if isinstance(place, dict) else place
        if part.get("type") in (kind, f"{kind}_url") and isinstance(url, str):
            is_whole = f"{kind}_url" in part and url.startswith(_SCHEMES)
            return part if is_whole else media_part(kind, url if url.startswith(_SCHEMES) else _url(folder / url))
    return part


def _url(file: Path) -> str:
    try:
        content = file.read_bytes()
    except (OSError, ValueError) as error:  # the latter of a path with a NUL in it
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"{shorten(str(file))} can't be read: {reason}.", param="dataset_path") from error
    return data_url(mimetypes.guess_type(file.name)[0] or "application/octet-stream", content)

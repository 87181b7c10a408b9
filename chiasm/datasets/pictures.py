"""Pictures as data sets hold them."""

from __future__ import annotations

import base64
import binascii
import io
import os.path
from pathlib import Path

from PIL import Image

from chiasm.errors import UserError, shorten

_DATA_URL = "data:"
_NO_PICTURE = (OSError, SyntaxError, ValueError, Image.DecompressionBombError)  # whatever a decoder says of bad bytes


def read_picture(value: object, folder: Path | None = None) -> Image.Image:
    """A picture.

    Args:
        value: one of the hub's form (an object with ``bytes`` or ``path``), bytes, a ``data:`` URL, base64, the path
            of a file, or a picture already.
        folder: relative paths begin here.

    Raises:
        UserError: if it is none of these, or no picture.
    """
    if isinstance(value, Image.Image):
        return value
    content = _bytes_of(value, folder)
    try:
        picture = Image.open(io.BytesIO(content))
        picture.load()
    except _NO_PICTURE as error:
        raise UserError(f"not a picture that can be read: {shorten(value)}", param="dataset_path") from error
    return picture


def _bytes_of(value: object, folder: Path | None) -> bytes:
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path") or value
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise UserError(f"not a picture: {shorten(value)}", param="dataset_path")
    if value.startswith(_DATA_URL):
        return _decoded(value.partition(",")[2])
    path = (folder or Path()) / value
    if os.path.isfile(path):  # noqa: PTH113 - Path.is_file() raises where base64 is too long for a name
        return path.read_bytes()
    return _decoded(value)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        message = f"neither a file nor base64: {shorten(text)}"
        raise UserError(message, param="dataset_path") from error


def data_url(mime: str, content: bytes) -> str:
    """Bytes within a URL."""
    return f"{_DATA_URL}{mime};base64,{base64.b64encode(content).decode()}"


def image_url(image: Image.Image, form: str = "JPEG") -> str:
    """A picture within a URL; JPEG is what vLLM's benchmark sends."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, form)
    return data_url(f"image/{form.lower()}", buffer.getvalue())

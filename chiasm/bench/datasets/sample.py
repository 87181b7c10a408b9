"""What a benchmark asks: one chat request each, media included."""

from __future__ import annotations

import base64
import io
from typing import Any

import msgspec
from PIL import Image


class Sample(msgspec.Struct, frozen=True):
    """One request.

    Attributes:
        content: parts of the user's message, as the API takes them.
        output_len: most tokens of its answer.
    """

    content: list[dict[str, Any]]
    output_len: int


def text_part(text: str) -> dict[str, Any]:
    """A part of a message that is text."""
    return {"type": "text", "text": text}


def media_part(kind: str, url: str) -> dict[str, Any]:
    """A part of a message that is an image or a video.

    Args:
        kind: ``image`` or ``video``.
        url: that it has.
    """
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def data_url(mime: str, content: bytes) -> str:
    """Bytes within a URL."""
    return f"data:{mime};base64,{base64.b64encode(content).decode()}"


def image_url(image: Image.Image, form: str = "JPEG") -> str:
    """A picture within a URL; JPEG is what vLLM's benchmark sends."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, form)
    return data_url(f"image/{form.lower()}", buffer.getvalue())

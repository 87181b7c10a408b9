"""What a benchmark asks: one chat request each, media included."""

from __future__ import annotations

from typing import Any

import msgspec


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

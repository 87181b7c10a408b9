"""What the examples beside this file share: a client, and pictures and videos within a request.

They ask the server at CHIASM_URL, http://127.0.0.1:8000 by default (``chiasm serve``), with the key CHIASM_API_KEY.
"""

from __future__ import annotations

import base64
import mimetypes
import os
from pathlib import Path
from typing import Any

from openai import OpenAI

CHARTS = Path(__file__).parents[2] / "chiasm" / "assets" / "chart-reader" / "examples"


def connect() -> tuple[OpenAI, str]:
    """A client, and the model's name."""
    url = os.environ.get("CHIASM_URL", "http://127.0.0.1:8000")
    client = OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("CHIASM_API_KEY", "unused"))
    return client, client.models.list().data[0].id


def media(kind: str, place: str | Path) -> dict[str, Any]:
    """A part of a message: ``image`` or ``video``, by its URL or as the content of a file."""
    url = str(place)
    if not url.startswith(("http://", "https://", "data:", "file://")):
        mime = mimetypes.guess_type(url)[0] or "application/octet-stream"
        url = f"data:{mime};base64,{base64.b64encode(Path(url).read_bytes()).decode()}"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def text(words: str) -> dict[str, Any]:
    """A part of a message."""
    return {"type": "text", "text": words}


def show(stream: Any) -> None:
    """Print a streamed answer as it comes."""
    for chunk in stream:
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

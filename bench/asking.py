"""A client that notes when the tokens of its answer come."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpcore2
import msgspec

_PREFIX = b"data: "
_END = b"[DONE]"


@dataclass
class Answer:
    """A streamed answer.

    Attributes:
        asked: when it was asked for.
        times: when its tokens came.
        text: what they say.
    """

    asked: float
    times: list[float] = field(default_factory=list)
    text: str = ""

    @property
    def seconds_to_first_token(self) -> float:
        """From the question on."""
        return self.times[0] - self.asked


def question(text: str, *, image: str | None = None, video: str | None = None) -> list[dict[str, Any]]:
    """The content of a message: a picture's and a video's URL, and then the text."""
    media = [(kind, url) for kind, url in (("image_url", image), ("video_url", video)) if url is not None]
    return [*({"type": kind, kind: {"url": url}} for kind, url in media), {"type": "text", "text": text}]


def ask(url: str, content: Sequence[dict[str, Any]], num_tokens: int) -> Answer:
    """Stream an answer of so many tokens from the server at ``url``.

    Raises:
        SystemExit: if it refuses, or gives another number of tokens.
    """
    body = msgspec.json.encode(
        {
            "messages": [{"role": "user", "content": content}],
            "max_tokens": num_tokens,
            "ignore_eos": True,
            "temperature": 0,
            "stream": True,
        }
    )
    answer = Answer(time.perf_counter())
    headers = {"Content-Type": "application/json"}
    with httpcore2.stream("POST", f"{url}/v1/chat/completions", headers=headers, content=body) as response:
        if response.status != 200:
            raise SystemExit(response.read().decode())
        for event in _events(response.iter_stream()):
            if "error" in event:
                raise SystemExit(f"{url} breaks off: {event['error']}")
            # An answer's role comes in an event of its own, just before the first token.
            for choice in event["choices"]:
                if "role" not in choice["delta"]:
                    answer.times.append(time.perf_counter())
                    answer.text += choice["delta"]["content"]
    if len(answer.times) != num_tokens:
        raise SystemExit(f"{url} gave {len(answer.times)} tokens in place of {num_tokens}")
    return answer


def _events(chunks: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """Server-sent events as they are complete."""
    rest = b""
    for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.startswith(_PREFIX) and not line.startswith(_PREFIX + _END):
                yield msgspec.json.decode(line.removeprefix(_PREFIX))

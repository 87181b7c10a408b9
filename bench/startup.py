"""Seconds from the start of ``chiasm serve`` to "ready" and to the first token of an answer about an image.

python -m bench.startup [--runs 5] [ARGUMENTS OF chiasm serve ...]
"""

from __future__ import annotations

import argparse
import base64
import io
import statistics
import time

import httpcore2
import msgspec
from PIL import Image

from bench.serving import BenchServer


def first_token_seconds(url: str) -> float:
    """From sending a question about an image to the first chunk of its answer."""
    buffer = io.BytesIO()
    Image.effect_noise((448, 448), 64).convert("RGB").save(buffer, "PNG")
    image = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "What is this?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "stream": True}
    start = time.perf_counter()
    with httpcore2.stream(
        "POST",
        f"{url}/v1/chat/completions",
        headers={"Content-Type": "application/json"},
        content=msgspec.json.encode(body),
    ) as response:
        assert response.status == 200, response.status
        next(response.iter_stream())
        return time.perf_counter() - start


def main() -> None:
    """Print the median of some runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    options, serve_arguments = parser.parse_known_args()
    ready, first = [], []
    for _ in range(options.runs):
        with BenchServer(*serve_arguments) as server:
            ready.append(server.ready_seconds)
            first.append(server.ready_seconds + first_token_seconds(server.url))
    for name, seconds in (("ready", ready), ("first token", first)):
        print(f"{name:12s} median {statistics.median(seconds):.2f} s, range {min(seconds):.2f}-{max(seconds):.2f} s")


if __name__ == "__main__":
    main()

"""Latency of ``/health`` while many requests with large pictures are in flight.

python -m bench.health_under_load [--requests 64] [--width 4000] [--height 3000] [--seconds 0]
                                  [ARGUMENTS OF chiasm serve ...]

Half of the pictures are JPEG, half PNG, of a few megabytes each, as data: URLs; all are sent at once by a process of
their own, and by ``--seconds`` again until so much time has passed. Meanwhile ``/health`` is asked over a new
connection every 5 ms, as a prober asks it. Fails if the 99th percentile is above 50 ms or a request is not answered.
"""

from __future__ import annotations

import argparse
import base64
import io
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import httpcore2
import msgspec
import numpy as np
from PIL import Image

from bench.serving import BenchServer

_INTERVAL = 0.005
_LIMIT_MS = 50.0
_FORMS = ("JPEG", "PNG")


def picture_file(width: int, height: int, form: str) -> bytes:
    """A picture of these sizes: soft noise, which makes files as large as photographs' are."""
    noise = np.random.default_rng(0).integers(0, 256, (height // 20, width // 20, 3), dtype=np.uint8)
    how = Image.Resampling.BICUBIC if form == "JPEG" else Image.Resampling.NEAREST
    picture = Image.fromarray(noise).resize((width, height), how)
    if form == "PNG":  # blocks alone would be next to nothing
        picture.paste(Image.effect_noise((width, height // 3), 60).convert("RGB"))
    file = io.BytesIO()
    picture.save(file, form, quality=90, compress_level=1)
    return file.getvalue()


def picture_body(file: bytes, form: str, number: int) -> bytes:
    """A question about a picture that no other number gives: bytes behind a file's end make it another for caches."""
    data = base64.b64encode(file + number.to_bytes(4, "big")).decode()
    url = f"data:image/{form.lower()};base64,{data}"
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    return msgspec.json.encode({"messages": [{"role": "user", "content": content}], "max_tokens": 4})


def _ask(url: str, body: bytes) -> int:
    headers = {"Content-Type": "application/json"}
    return httpcore2.request("POST", f"{url}/v1/chat/completions", headers=headers, content=body).status


def put_load(url: str, bodies: Sequence[bytes], seconds: float) -> list[int]:
    """Send all bodies at once, and again until so much time has passed; returns the statuses."""
    statuses: list[int] = []
    until = time.monotonic() + seconds
    with ThreadPoolExecutor(len(bodies)) as threads:
        while not statuses or time.monotonic() < until:
            statuses += threads.map(_ask, [url] * len(bodies), bodies)
    return statuses


def probe(url: str) -> float:
    """Milliseconds of one question after the health."""
    start = time.perf_counter()
    assert httpcore2.request("GET", f"{url}/health").status == 200
    return 1000 * (time.perf_counter() - start)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print percentiles from the first question's send to the last one's answer; returns 1 if they are too high."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--width", type=int, default=4000)
    parser.add_argument("--height", type=int, default=3000)
    parser.add_argument("--seconds", type=float, default=0.0, help="of load, at least")
    options, serve_arguments = parser.parse_known_args(arguments)
    forms = [_FORMS[number % len(_FORMS)] for number in range(options.requests)]
    files = {form: picture_file(options.width, options.height, form) for form in _FORMS}
    bodies = [picture_body(files[form], form, number) for number, form in enumerate(forms)]
    own_process = ProcessPoolExecutor(1, multiprocessing.get_context("spawn"))
    with BenchServer("-tp", "2", *serve_arguments) as server, own_process as process:
        probe(server.url)
        process.submit(time.monotonic).result()  # it is there
        loading = process.submit(put_load, server.url, bodies, options.seconds)
        latencies = []
        while not loading.done():
            latencies.append(probe(server.url))
            time.sleep(_INTERVAL)
        statuses = loading.result()
    sizes = [f"{len(body) / 2**20:.1f} MiB ({form})" for form, body in zip(forms[:2], bodies[:2], strict=True)]
    print(f"{len(statuses)} requests of {', '.join(sizes)}, statuses {sorted(set(statuses))}")
    for percentile in (50, 90, 99, 100):
        print(f"/health p{percentile}: {np.percentile(latencies, percentile):.1f} ms of {len(latencies)} calls")
    return int(set(statuses) != {200} or bool(np.percentile(latencies, 99) > _LIMIT_MS))


if __name__ == "__main__":
    sys.exit(main())

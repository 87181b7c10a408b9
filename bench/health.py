"""Latency of ``/health`` while many large images are being processed.

python -m bench.health [--images 32] [--width 4000] [--height 3000] [ARGUMENTS OF chiasm serve ...]
"""

from __future__ import annotations

import argparse
import base64
import io
import threading
import time

import httpcore2
import msgspec
import numpy as np
from PIL import Image

from bench.serving import BenchServer


def image_body(width: int, height: int, seed: int) -> bytes:
    """A question about a JPEG of these sizes."""
    noise = np.random.default_rng(seed).integers(0, 256, (height // 20, width // 20, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noise).resize((width, height)).save(buffer, "JPEG", quality=90)
    url = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    return msgspec.json.encode({"messages": [{"role": "user", "content": content}], "max_tokens": 1})


def ask(url: str, body: bytes, statuses: list[int]) -> None:
    """Post one question."""
    headers = {"Content-Type": "application/json"}
    response = httpcore2.request("POST", f"{url}/v1/chat/completions", headers=headers, content=body)
    statuses.append(response.status)


def main() -> None:
    """Print percentiles of ``/health`` from the first question's send to the last one's answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--width", type=int, default=4000)
    parser.add_argument("--height", type=int, default=3000)
    options, serve_arguments = parser.parse_known_args()
    bodies = [image_body(options.width, options.height, seed) for seed in range(options.images)]
    statuses: list[int] = []
    with BenchServer(*serve_arguments) as server, httpcore2.ConnectionPool() as pool:
        pool.request("GET", f"{server.url}/health")
        threads = [threading.Thread(target=ask, args=(server.url, body, statuses)) for body in bodies]
        for thread in threads:
            thread.start()
        latencies = []
        while any(thread.is_alive() for thread in threads):
            start = time.perf_counter()
            assert pool.request("GET", f"{server.url}/health").status == 200
            latencies.append(1000 * (time.perf_counter() - start))
            time.sleep(0.005)
    print(f"{len(bodies)} images of {len(bodies[0]) / 2**20:.1f} MiB as JSON, answers: {sorted(set(statuses))}")
    for percentile in (50, 90, 99, 100):
        print(f"/health p{percentile}: {np.percentile(latencies, percentile):.1f} ms of {len(latencies)} calls")


if __name__ == "__main__":
    main()

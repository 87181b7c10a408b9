"""Memory of a server while distinct images go through it: it must be flat once the caches are full.

python -m bench.memory [--num-images 10000] [--side 112] [--clients 4] [ARGUMENTS OF chiasm serve ...]

The caches are made small unless the arguments say otherwise, so that they fill early and evict all the time.
"""

from __future__ import annotations

import argparse
import base64
import io
import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import httpcore2
import msgspec
import numpy as np
import psutil
from PIL import Image

from bench.serving import BenchServer

_ROWS = 20  # of the table
_SMALL_CACHES = (
    "--mm-processor-cache-gb", "0.03", "--mm-encoder-cache-gb", "0.01", "--kv-cache-memory-bytes", str(32 * 2**20),
)  # fmt: skip


class Sample(NamedTuple):
    """Resident MiB of the server, of the core with its ranks, and of preprocessing; MiB and files of pixels."""

    server: float
    engine: float
    preprocessing: float
    pixels: float
    num_files: int

    @property
    def total(self) -> float:
        """Resident MiB of all processes; what they share is counted in each."""
        return self.server + self.engine + self.preprocessing


def question(number: int, side: int) -> bytes:
    """A request about an image that no other number gives."""
    blocks = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((side, side), Image.Resampling.NEAREST).save(buffer, "PNG")
    url = "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
    content = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this?"}]
    return msgspec.json.encode({"messages": [{"role": "user", "content": content}], "max_tokens": 1})


def take_sample(pid: int) -> Sample:
    """Look at the server with this process id and at all below it."""
    resident = {"server": 0.0, "engine": 0.0, "preprocessing": 0.0}
    folders: set[Path] = set()
    main = psutil.Process(pid)
    for process in (main, *main.children(recursive=True)):
        command = process.cmdline()
        is_worker = "chiasm.multimodal.worker" in command
        role = "server" if process is main else "preprocessing" if is_worker else "engine"
        resident[role] += process.memory_info().rss / 2**20
        folders |= {Path(part) for part in command if is_worker and Path(part).name.startswith("chiasm-")}
    files = [file for folder in folders for file in folder.glob("*.pixels")]
    sizes = []
    for file in files:
        try:
            sizes.append(file.stat().st_blocks * 512)
        except FileNotFoundError:  # evicted just now
            continue
    return Sample(**resident, pixels=sum(sizes) / 2**20, num_files=len(sizes))


def ask(server: BenchServer, connections: httpcore2.ConnectionPool, number: int, side: int) -> None:
    """Post one question, and insist on an answer."""
    headers = {"Content-Type": "application/json"}
    url = f"{server.url}/v1/chat/completions"
    response = connections.request("POST", url, headers=headers, content=question(number, side))
    assert response.status == 200, response.content


def run(options: argparse.Namespace, server: BenchServer) -> Iterator[tuple[int, float, Sample]]:
    """Images so far, seconds, and a sample, from the first answer on."""
    numbers = itertools.count()
    with httpcore2.ConnectionPool() as connections, ThreadPoolExecutor(options.clients) as threads:
        start, done = time.perf_counter(), 0
        while done < options.num_images:
            batch = min(max(1, options.num_images // _ROWS), options.num_images - done) if done else 1
            asking = [threads.submit(ask, server, connections, next(numbers), options.side) for _ in range(batch)]
            for task in asking:
                task.result()
            done += batch
            yield done, time.perf_counter() - start, take_sample(server.pid)


def main() -> None:
    """Print a row for each twentieth of the images, and the growth after the first fifth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num-images", type=int, default=10_000)
    parser.add_argument("--side", type=int, default=112, help="of an image, in pixels")
    parser.add_argument("--clients", type=int, default=4)
    options, serve_arguments = parser.parse_known_args()
    print("| images | seconds | server | core and ranks | preprocessing | resident, MiB | pixels, MiB | files |")
    print("|---|---|---|---|---|---|---|---|")
    warm: list[Sample] = []
    with BenchServer(*_SMALL_CACHES, *serve_arguments) as server:
        for done, seconds, sample in run(options, server):
            warm += [sample] if done >= options.num_images / 5 else []
            print(
                f"| {done} | {seconds:.0f} | {sample.server:.0f} | {sample.engine:.0f} | {sample.preprocessing:.0f} "
                f"| {sample.total:.0f} | {sample.pixels:.1f} | {sample.num_files} |",
                flush=True,
            )
    print(f"after the first fifth: {warm[-1].total - warm[0].total:+.1f} MiB resident", end=", ")
    print(f"{warm[-1].pixels - warm[0].pixels:+.1f} MiB of pixels")


if __name__ == "__main__":
    main()

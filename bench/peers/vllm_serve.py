"""The server beside vLLM's CPU build, under vLLM's own client: pictures of 448x448, 32 tokens in, 32 out, float32.

python -m bench.peers.vllm_serve FOLDER --peer-python PATH [--repeats 5] [--prompts 24] [--all-setups]

``vllm bench serve`` (random-mm) asks each server in turn, which is started for it and ended after it; the client runs
on the same cores. vLLM is one process on both cores, with ``--all-setups`` also two ranks with ``weights`` and with
``data``; ours is one rank and two. Caches are off. Time per output token is also put beside its floor, reading the
language model's weights once: their bytes in float32 over the best rate of a matrix-vector product in the same run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from unittest.mock import patch

from bench.measure import alternate, print_table, show
from bench.peers.client import Load, Served, run_client
from bench.peers.flops import bytes_of_decode_step
from bench.peers.measure import Rates, argument_parser
from bench.peers.sides import MAX_PIXELS, VLLM_SETUPS, chiasm_name
from bench.peers.vllm_server import VllmServer
from bench.serving import BenchServer

_COLUMNS = (
    "server", "output tokens/s", "mean TTFT, ms", "median TTFT, ms", "p99 TTFT, ms", "median TPOT, ms",
    "ready after, s",
)  # fmt: skip
_OURS = (
    "--served-model-name", "m", "--dtype", "float32", "--max-model-len", "2048", "--max-num-seqs", "8",
    "--no-enable-prefix-caching", "--mm-encoder-cache-gb", "0", "--mm-processor-cache-gb", "0",
    "--limit-mm-per-prompt", '{"image":1,"video":0}', "--mm-processor-kwargs", f'{{"max_pixels":{MAX_PIXELS}}}',
)  # fmt: skip


def _serve_theirs(load: Load, setup: str, _number: int) -> Served:
    with VllmServer(load.python, load.folder, setup) as server:
        return run_client(load, server.url, server.ready_seconds)


def _serve_ours(load: Load, ranks: int, _number: int) -> Served:
    with BenchServer(str(load.folder), "--tensor-parallel-size", str(ranks), *_OURS) as server:
        return run_client(load, server.url, server.ready_seconds)


def _measure_reading(folder: Path, repeats: int) -> list[list[str]]:
    """Rows of the floor under time per output token, for one process and for two."""
    with ExitStack() as stack:
        rates = Rates(stack)
        measured = alternate({name: partial(_read, rates, name) for name in rates.names}, repeats)
    size = bytes_of_decode_step(folder)
    return [
        [name, f"{size / 1e6:.0f}", f"{median(found) / 1e9:.1f}", f"{1000 * size / median(found):.1f}"]
        for name, found in measured.items()
    ]


def _read(rates: Rates, name: str, _number: int) -> float:
    return rates.measure(name, "matvec")


def _row(name: str, runs: list[Served]) -> list[str]:
    columns = zip(*runs, strict=True)
    return [name, *(show(values, 2 if index == 0 else 1) for index, values in enumerate(columns))]


def main() -> None:
    """Print a row for every server, and the floors."""
    numbers = (("--prompts", 24, "asked in all"), ("--concurrency", 8, "of the client"))
    parser = argument_parser(__doc__, *numbers)
    parser.add_argument("--all-setups", action="store_true", help="vLLM in all three")
    options = parser.parse_args()
    load = Load(options.peer_python, options.folder, options.prompts, options.concurrency)
    setups = list(VLLM_SETUPS) if options.all_setups else list(VLLM_SETUPS)[:1]
    sides: dict[str, Callable[[int], Served]] = {}
    for setup in setups:
        sides[f"vLLM, {setup}"] = partial(_serve_theirs, load, setup)
    for ranks in (1, 2):
        sides[chiasm_name(ranks)] = partial(_serve_ours, load, ranks)
    with TemporaryDirectory() as cache, patch.dict(os.environ, CHIASM_CACHE=cache):
        os.environ.pop("OMP_NUM_THREADS", None)
        results = alternate(sides, options.repeats, warm=False)
        floors = _measure_reading(options.folder, options.repeats)
    title = f"{options.prompts} prompts, {options.concurrency} at a time; medians of {options.repeats} in turn"
    print_table(title, _COLUMNS, [_row(name, runs) for name, runs in results.items()])
    columns = ("processes on two cores", "MB of weights", "GB/s", "ms per step")
    print_table("Floor of a decode step", columns, floors)


if __name__ == "__main__":
    main()

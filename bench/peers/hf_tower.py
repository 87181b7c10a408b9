"""The vision tower beside Hugging Face's, in float32 on two cores: 448x448, 896x896, and a mix of eight sizes.

python -m bench.peers.hf_tower FOLDER --peer-python PATH [--repeats 5]

FOLDER holds a Qwen2.5-VL. Hugging Face's tower is one call with SDPA on two threads; ours runs as one rank of two
threads and as two ranks of one thread with ``auto``. Preprocessing is left out on both sides; ours reads its rows
from a file and normalises them within the time. Beside each is its share of the rate of one float32 matrix product
([4096, 512] x [512, 1536], the best within a second) on as many processes and threads, measured in turn with them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.measure import alternate, print_table, show
from bench.peers.flops import tower_flops
from bench.peers.measure import Rates, argument_parser
from bench.peers.requests import MIX, Request, image_request
from bench.peers.sides import hf_worker
from bench.peers.worker import Worker
from chiasm.bench.encoder import plan_mode
from chiasm.bench.ranks import RankSet, make_units, start_ranks
from chiasm.bench.workloads import Batch
from chiasm.config.engine import EngineConfig
from chiasm.schema.plan import VisionPlan

_PEER = "transformers, 2 threads"
_WORKLOADS = {"448x448": ((448, 448),), "896x896": ((896, 896),), "mix of 8": MIX}
_SETUPS = {"1 rank of 2 threads": (1, 2), "2 ranks of 1 thread": (2, 1)}
_RATE_OF = {_PEER: "1 process", "1 rank of 2 threads": "1 process", "2 ranks of 1 thread": "2 processes"}
_COLUMNS = ("tower", "side", "seconds", "speed over transformers", "GFLOP/s", "matmul GFLOP/s", "share of it")


def _run_plan(ranks: RankSet, plan: VisionPlan, _number: int) -> float:
    return ranks.run(plan).seconds


def _run_peer(peer: Worker, requests: Sequence[Request], _number: int) -> float:
    return float(peer.call("tower", requests=requests)["seconds"])


def _measure(
    name: str, peer: Worker, ours: dict[str, RankSet], rates: Rates, repeats: int, scratch: Path
) -> tuple[Batch, dict[str, list[float]]]:
    """The grids of a workload's pictures, and seconds or FLOP/s of every side."""
    requests = [image_request(*size, seed) for seed, size in enumerate(_WORKLOADS[name])]
    grids: Batch = tuple((grid[0], grid[1], grid[2]) for grid in peer.call("tower", requests=requests)["grids"])
    sides: dict[str, Callable[[int], float]] = {
        rate: lambda _, rate=rate: rates.measure(rate, "matmul")  # type: ignore[misc]
        for rate in rates.names
    }
    sides[_PEER] = partial(_run_peer, peer, requests)
    for setup, ranks in ours.items():
        units = make_units(grids, ranks.facts, scratch / f"{name}, {setup}")
        sides[setup] = partial(_run_plan, ranks, plan_mode("auto", [units], ranks.cost_model))
    return grids, alternate(sides, repeats)


def _rows(name: str, flops: int, measured: dict[str, list[float]]) -> list[list[str]]:
    rows = []
    for side, rate_name in _RATE_OF.items():
        seconds, rate = measured[side], median(measured[rate_name])
        speed = flops / median(seconds)
        ratio = median(measured[_PEER]) / median(seconds)
        figures = [f"{speed / 1e9:.1f}", f"{rate / 1e9:.1f}", f"{speed / rate:.2f}"]
        rows.append([name, side, show(seconds, 3), f"{ratio:.2f}", *figures])
    return rows


def main() -> None:
    """Print a row for every workload and side."""
    options = argument_parser(__doc__).parse_args()
    rows = []
    with TemporaryDirectory() as scratch, ExitStack() as stack:
        rates = Rates(stack)
        ours = {}
        for setup, (ranks, threads) in _SETUPS.items():
            config = EngineConfig(model=str(options.folder), dtype="float32", tensor_parallel_size=ranks)
            ours[setup] = stack.enter_context(start_ranks(config, threads))
        peer = stack.enter_context(hf_worker(options.peer_python, options.folder, threads=2))
        for name in _WORKLOADS:
            grids, measured = _measure(name, peer, ours, rates, options.repeats, Path(scratch))
            rows += _rows(name, tower_flops(options.folder, grids), measured)
    print_table(f"Vision tower, float32; medians of {options.repeats} in turn", _COLUMNS, rows)


if __name__ == "__main__":
    main()

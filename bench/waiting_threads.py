"""What threads that wait for each other should do: decoding with each policy, on idle cores and beside busy loops.

python -m bench.waiting_threads FOLDER [--rounds 3] [--spins 1000,10000]

FOLDER is one that ``bench.make_checkpoint`` wrote. OpenMP's threads spin for ever (ACTIVE), sleep at once (PASSIVE),
or spin a number of times before they sleep (GNU's GOMP_SPINCOUNT). Every policy decodes in a process of its own, in
turn; shown are medians of the rounds, in milliseconds a step, and how far each is from the best of its column. What
the engine's own processes do (chiasm/dist/children.py) is called "ours".
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.measure import print_table
from chiasm.config.engine import EngineConfig
from chiasm.dist.children import SPINNING
from chiasm.engine.core.core import EngineCore
from tests.engine.driven import request, running
from tests.isa import busy_loops
from tests.prompts import make_prompt

_BATCHES = (1, 8)
_NUM_STEPS = 64
_NUM_PROMPT_TOKENS = 32
_NUM_BUSY = 2


def decode(folder: Path) -> list[float]:
    """Seconds of the median step, for each number of sequences; in this process."""
    config = EngineConfig(model=str(folder), device="cpu", kv_cache_memory_bytes=2**28)
    found = []
    with TemporaryDirectory() as scratch, running(config) as core:
        for count in _BATCHES:
            for index in range(count):
                prompt = make_prompt(core.ready.facts, [_NUM_PROMPT_TOKENS], seed=index)
                core.add(request(f"{count}-{index}", prompt, Path(scratch), max_tokens=_NUM_STEPS + 8))
            for _ in range(4):
                core.step()
            found.append(median(_step_seconds(core) for _ in range(_NUM_STEPS)))
            while core.has_work:
                core.step()
    return found


def _step_seconds(core: EngineCore) -> float:
    start = time.perf_counter()
    core.step()
    return time.perf_counter() - start


def _measure(folder: Path, policy: dict[str, str]) -> list[float]:
    kept = {name: value for name, value in os.environ.items() if name not in SPINNING}
    command = [sys.executable, "-m", "bench.waiting_threads", str(folder), "--decode"]
    printed = subprocess.run(command, env={**kept, **policy}, stdout=subprocess.PIPE, check=True, text=True)
    found: list[float] = json.loads(printed.stdout)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--spins", default="", help="further values of GOMP_SPINCOUNT, parted by commas")
    parser.add_argument("--decode", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.decode:
        print(json.dumps(decode(options.folder)))
        return
    policies: dict[str, dict[str, str]] = {
        "ACTIVE": {"OMP_WAIT_POLICY": "ACTIVE"},
        "PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
        "ours": SPINNING,
        "unset": {},
    }
    policies |= {f"{count} spins": {"GOMP_SPINCOUNT": count} for count in filter(None, options.spins.split(","))}
    times: dict[str, dict[str, list[float]]] = {name: defaultdict(list) for name in policies}
    for number in range(options.rounds):
        for num_busy in (0, _NUM_BUSY):
            for name, policy in policies.items():
                print(f"round {number + 1} of {options.rounds}, {num_busy} busy loops, {name}", file=sys.stderr)
                with busy_loops(num_busy):
                    for count, seconds in zip(_BATCHES, _measure(options.folder, policy), strict=True):
                        times[name][f"{count} at a time, {num_busy} busy loops"].append(seconds)
    _print(times)


def _print(times: dict[str, dict[str, list[float]]]) -> None:
    medians = {name: {column: median(values) for column, values in own.items()} for name, own in times.items()}
    columns = list(next(iter(medians.values())))
    best = {column: min(own[column] for own in medians.values()) for column in columns}
    rows = [
        [name, *(f"{1e3 * own[column]:.1f} ({own[column] / best[column]:.2f})" for column in columns)]
        for name, own in medians.items()
    ]
    print_table("Milliseconds a step, and times the best", ["waiting threads", *columns], rows)


if __name__ == "__main__":
    main()

"""The numeric part of the suite with other kernels than the best for this CPU, and on a busy machine.

python -m tests.isa [--only SETTING] [ARGUMENTS OF pytest ...]

torch, oneDNN and MKL choose their kernels by what the CPU can do, and each kernel adds up in an order of its own.
Here they are told to take those of lesser CPUs. All settings are run, also after one that fails; the exit status is
the worst of theirs.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
NUMERIC = (
    "tests/test_rounding.py", "tests/ops", "tests/layers", "tests/models", "tests/vision", "tests/sampling",
    "tests/dist", "tests/training", "tests/engine/test_encoder_graphs.py", "tests/engine/test_scoring.py",
    "tests/engine/test_memory.py", "tests/evals/test_harness.py", "tests/e2e/test_families.py",
    "tests/e2e/test_parameters.py",
)  # fmt: skip
"""What computes with weights, or compares what was computed."""


class Setting(NamedTuple):
    """How the tests are run.

    Attributes:
        variables: of the environment, which ranks inherit.
        num_busy_loops: processes beside the tests that do nothing but work.
    """

    variables: Mapping[str, str] = {}
    num_busy_loops: int = 0


SETTINGS = {
    "as found": Setting(),
    "AVX2": Setting({"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}),
    "no vectors": Setting({"ATEN_CPU_CAPABILITY": "default"}),
    "busy": Setting(num_busy_loops=2),
}
VARIABLES = tuple(dict.fromkeys(name for setting in SETTINGS.values() for name in setting.variables))

_BUSY_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(10**6))"


class Result(NamedTuple):
    """What came of a setting.

    Attributes:
        status: with which pytest ended.
        seconds: it took.
    """

    status: int
    seconds: float


def describe(variables: Mapping[str, str]) -> str:
    """As a shell sets them."""
    return " ".join(f"{name}={value}" for name, value in variables.items())


def run(setting: Setting, arguments: Sequence[str]) -> Result:
    """Run the numeric part in a setting."""
    start = time.monotonic()
    with busy_loops(setting.num_busy_loops):
        command = [sys.executable, "-m", "pytest", "-q", *NUMERIC, *arguments]
        status = subprocess.run(command, cwd=ROOT, env={**os.environ, **setting.variables}, check=False).returncode
    return Result(128 - status if status < 0 else status, time.monotonic() - start)


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    """Keep so many cores busy while the context is open; the loops end with this process in any case."""
    loops = [subprocess.Popen([sys.executable, "-c", _BUSY_LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def _line(name: str, result: Result) -> str:
    setting = SETTINGS[name]
    how = describe(setting.variables) or (f"{setting.num_busy_loops} busy loops" if setting.num_busy_loops else "")
    outcome = "passed" if result.status == 0 else f"failed with status {result.status}"
    return f"{name}{how and f' ({how})'}: {outcome} in {result.seconds / 60:.1f} minutes"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the settings and say what came of each; returns the worst status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=SETTINGS, help="a setting; may be given several times")
    options, pytest_arguments = parser.parse_known_args(arguments)
    results: dict[str, Result] = {}
    for name in options.only or SETTINGS:
        print(f"--- {name}", flush=True)
        results[name] = run(SETTINGS[name], pytest_arguments)
    print("\n" + "\n".join(_line(name, result) for name, result in results.items()))
    return max(result.status for result in results.values())


if __name__ == "__main__":
    sys.exit(main())

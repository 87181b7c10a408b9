"""How long each command that measures takes with its defaults and the built-in model.

python -m bench.commands [--only WORD]

Every one is to end within three minutes on two cores, without a network. ``eval chartqa`` is given drawn charts,
since its default is the hub's data, and ``bench serve`` a server.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.measure import print_table
from bench.serving import BenchServer

_KEPT = ("--save-detailed", "--label")
_ALONE = (
    ("bench", "encoder"),
    ("bench", "encoder", "--simulate", "8"),
    ("bench", "latency"),
    ("bench", "throughput"),
    ("bench", "modes"),
    ("eval", "charts"),
    ("eval", "chartqa", "--data", "charts"),
)
_WITH_SERVER = (
    ("bench", "serve", *_KEPT, "old"),
    ("bench", "serve", *_KEPT, "new", "--request-rate", "10"),
    ("eval", "charts"),
)
_COMPARE = ("bench", "compare", "--png", "compare.png", "--html", "compare.html")
_NO_NETWORK = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
_LINES = 6


def _run(arguments: Sequence[str], folder: Path) -> list[str]:
    """A row: the command and its seconds; what it printed last goes before the table."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "chiasm.cli", *arguments]
    done = subprocess.run(
        command, cwd=folder, env={**os.environ, **_NO_NETWORK}, capture_output=True, text=True, check=False
    )
    seconds = time.perf_counter() - start
    line = f"chiasm {' '.join(arguments)}"
    print(f"\n$ {line}", *done.stdout.splitlines()[-_LINES:], sep="\n")
    if done.returncode:
        raise SystemExit(f"{line} ends with {done.returncode}:\n{done.stderr}")
    return [line, f"{seconds:.0f}"]


def main() -> None:
    """Print a row for each command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="run the commands with this word alone")
    only = parser.parse_args().only
    with TemporaryDirectory() as name:
        folder = Path(name)
        rows = [_run(each, folder) for each in _ALONE if only in each or not only]
        with BenchServer("--no-ui") as server:
            rows += [
                _run([*each, "--base-url", server.url], folder) for each in _WITH_SERVER if only in each or not only
            ]
        files = [file.name for file in sorted(folder.glob("*.json"), reverse=True)]
        if files:
            rows.append(_run([*_COMPARE, *files], folder))
    print_table("Seconds of each command", ("command", "s"), rows)


if __name__ == "__main__":
    main()

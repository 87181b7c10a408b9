"""Sides measured in turn, their medians, and tables of them."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import TypeVar

from bench.peers.sides import rates_worker
from bench.peers.worker import Worker

Result = TypeVar("Result")
_RATE_SECONDS = 1.0


def _stop(_number: int, _frame: object) -> None:
    raise SystemExit("stopped")


def argument_parser(doc: str | None, *options: tuple[str, int, str]) -> argparse.ArgumentParser:
    """For the arguments that all commands take, and whole numbers as (name, default, help).

    From here on SIGTERM ends a command as Ctrl-C does: it leaves no engine behind, least of all one that is halted.
    """
    signal.signal(signal.SIGTERM, _stop)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="the checkpoint")
    parser.add_argument("--peer-python", required=True, help="interpreter of the peer's virtual environment")
    parser.add_argument("--repeats", type=int, default=5, help="of every side, one after another; medians are shown")
    for name, default, text in options:
        parser.add_argument(name, type=int, default=default, help=text)
    return parser


def alternate(
    sides: Mapping[str, Callable[[int], Result]], repeats: int, *, warm: bool = True
) -> dict[str, list[Result]]:
    """Run the sides in turn, ``repeats`` times each, so that what disturbs the machine disturbs all.

    Args:
        sides: by name; each is given the number of its run, for pictures that no run had before.
        repeats: runs that count.
        warm: whether each side runs once before, uncounted.
    """
    results: dict[str, list[Result]] = {name: [] for name in sides}
    for number in range(repeats + warm):
        for name, run in sides.items():
            result = run(number)
            if number >= warm:
                results[name].append(result)
    return results


class Rates:
    """The rates of one process with two threads, and of two processes with one thread each, at the same time."""

    def __init__(self, stack: ExitStack) -> None:
        """Start the processes; ``stack`` ends them."""
        self._workers: dict[str, list[Worker]] = {
            "1 process": [stack.enter_context(rates_worker(2))],
            "2 processes": [stack.enter_context(rates_worker(1)) for _ in range(2)],
        }
        self.names = tuple(self._workers)

    def measure(self, name: str, kind: str) -> float:
        """The sum over the processes of "matmul", FLOP/s, or "matvec", bytes/s."""
        for worker in self._workers[name]:
            worker.send(kind, seconds=_RATE_SECONDS)
        return float(sum(worker.receive() for worker in self._workers[name]))


def show(values: Sequence[float], digits: int = 2) -> str:
    """The median and the range."""
    return f"{median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table in Markdown."""
    print(f"\n{title}\n")
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(row) + " |")

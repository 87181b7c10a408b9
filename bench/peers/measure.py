"""What the commands that measure peers have in common: their arguments, and what the machine itself can do."""

from __future__ import annotations

import argparse
import signal
from contextlib import ExitStack
from pathlib import Path

from bench.peers.sides import rates_worker
from bench.peers.worker import Worker

_RATE_SECONDS = 1.0


def _stop(_number: int, _frame: object) -> None:
    raise SystemExit("stopped")


def argument_parser(
    doc: str | None, *options: tuple[str, int, str], needs_folder: bool = True
) -> argparse.ArgumentParser:
    """For the arguments that all commands take, and whole numbers as (name, default, help).

    From here on SIGTERM ends a command as Ctrl-C does: it leaves no engine behind, least of all one that is halted.
    """
    signal.signal(signal.SIGTERM, _stop)
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    if needs_folder:
        parser.add_argument("folder", type=Path, help="the checkpoint")
    parser.add_argument("--peer-python", required=True, help="interpreter of the peer's virtual environment")
    parser.add_argument("--repeats", type=int, default=5, help="of every side, one after another; medians are shown")
    for name, default, text in options:
        parser.add_argument(name, type=int, default=default, help=text)
    return parser


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

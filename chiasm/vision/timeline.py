"""What a rank was busy with, and when."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec


class Span(NamedTuple):
    """A stretch of time.

    Attributes:
        name: what was done in it.
        start: seconds on the machine's monotonic clock, the same for all its processes.
        stop: its end.
    """

    name: str
    start: float
    stop: float


class Timeline:
    """Spans of one plan on one rank, by the host's clock: on a GPU, work that was only launched looks short."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Note what is done within the ``with`` block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.spans.append(Span(name, start, time.perf_counter()))


def append_spans(folder: Path, rank: int, spans: Sequence[Span]) -> None:
    """Add a plan's spans to ``rank-N.jsonl`` in ``folder``, a line of JSON for each."""
    lines = b"".join(msgspec.json.encode(span._asdict()) + b"\n" for span in spans)
    with (folder / f"rank-{rank}.jsonl").open("ab") as file:
        file.write(lines)


def read_spans(folder: Path, rank: int) -> list[Span]:
    """What ``append_spans`` wrote for a rank."""
    lines = (folder / f"rank-{rank}.jsonl").read_bytes().splitlines()
    return [Span(**msgspec.json.decode(line)) for line in lines]

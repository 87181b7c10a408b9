"""What a rank was busy with, and when."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from chiasm.logs import get_logger

_log = get_logger(__name__)
_FILE = "rank-{}.jsonl"


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
        self._spans: list[Span] = []

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """Note what is done within the ``with`` block."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self._spans.append(Span(name, start, time.perf_counter()))

    def take(self) -> tuple[Span, ...]:
        """What was noted since the last call."""
        taken, self._spans = tuple(self._spans), []
        return taken


class SpanLog:
    """A file ``rank-N.jsonl`` to which a rank adds its spans, a line of JSON for each.

    Args:
        folder: where it is; None writes nothing.
        rank: N.
    """

    def __init__(self, folder: Path | None, rank: int) -> None:
        self._file = None if folder is None else folder / _FILE.format(rank)

    def append(self, spans: Sequence[Span]) -> None:
        """Add a plan's spans; where that fails it says so, once, and writes no more."""
        if self._file is None:
            return
        lines = b"".join(msgspec.json.encode(span._asdict()) + b"\n" for span in spans)
        try:
            with self._file.open("ab") as file:
                file.write(lines)
        except OSError as error:
            _log.warning("spans can't be written to %s any more: %s", self._file, error.strerror)
            self._file = None


def read_spans(folder: Path, rank: int) -> list[Span]:
    """What a rank's ``SpanLog`` holds."""
    lines = (folder / _FILE.format(rank)).read_bytes().splitlines()
    return [Span(**msgspec.json.decode(line)) for line in lines]

"""Which rows of a packed batch attend to each other, told without tensors."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby


@dataclass(frozen=True)
class Run:
    """``count`` segments of ``length`` rows each, one after another from row ``start``."""

    start: int
    count: int
    length: int

    @property
    def stop(self) -> int:
        """One past its last row."""
        return self.start + self.count * self.length


@dataclass(frozen=True)
class Segments:
    """Contiguous segments that cover a packed batch; rows attend within their own segment only.

    Attributes:
        runs: neighbours of equal length, joined; each run is one batched attention call.
    """

    runs: tuple[Run, ...]

    @classmethod
    def from_lengths(cls, lengths: Iterable[int]) -> Segments:
        """Segments of these lengths, in order."""
        runs = []
        start = 0
        for length, equal in groupby(lengths):
            run = Run(start, sum(1 for _ in equal), length)
            runs.append(run)
            start = run.stop
        return cls(tuple(runs))

    @property
    def num_rows(self) -> int:
        """Rows that they cover."""
        return self.runs[-1].stop if self.runs else 0

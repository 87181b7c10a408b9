"""Which rows of a packed batch attend to each other, and what becomes of segments that are cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Run:
    """``count`` segments of ``length`` rows each, one after another from row ``start``.

    The last ``num_padding`` rows of a segment attend to the others, which attend to all, but not to one another.
    """

    start: int
    count: int
    length: int
    num_padding: int = 0

    @property
    def stop(self) -> int:
        """One past its last row."""
        return self.start + self.count * self.length


class PendingAttention(Protocol):
    """Attention of rows whose segments go on elsewhere, while what it needs is on its way."""

    def finish(self, scale: float) -> Tensor:
        """[n, H, D], the attended rows; scores are multiplied by ``scale``."""


class SharedRows(Protocol):
    """Rows of segments that are cut: other ranks hold the rest."""

    @property
    def num_rows(self) -> int:
        """Of this rank; they are the first ones of the packed batch."""

    def begin(self, q: Tensor, k: Tensor, v: Tensor) -> PendingAttention:
        """Start what the ranks exchange for one layer; q, k and v are [num_rows, H, D]."""


class PlacedSegments(Protocol):
    """Segments that a kernel finds in fixed places of its device; where they begin and end may change there."""

    @property
    def num_rows(self) -> int:
        """That they cover."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        """Attend within each, as they are when the kernel reads it: [n, H, D] each -> [n, H, D]."""


@dataclass(frozen=True)
class Segments:
    """Contiguous segments that cover a packed batch; rows attend within their own segment only.

    Attributes:
        runs: neighbours of equal length, joined; each run is one batched attention call.
        shared: rows before the first run that attend across ranks; None where there are no other ranks to wait for.
        placed: stand for all rows in place of runs, in a pass that is recorded.
    """

    runs: tuple[Run, ...]
    shared: SharedRows | None = None
    placed: PlacedSegments | None = None

    @classmethod
    def from_lengths(cls, lengths: Iterable[int], shared: SharedRows | None = None) -> Segments:
        """Segments of these lengths, in order, behind the shared rows."""
        return cls.padded(((length, 0) for length in lengths), shared)

    @classmethod
    def padded(cls, segments: Iterable[tuple[int, int]], shared: SharedRows | None = None) -> Segments:
        """Segments given as (length, rows of padding at its end)."""
        runs = []
        start = 0 if shared is None else shared.num_rows
        for (length, num_padding), equal in groupby(segments):
            run = Run(start, sum(1 for _ in equal), length, num_padding)
            runs.append(run)
            start = run.stop
        return cls(tuple(runs), shared)

    @property
    def num_rows(self) -> int:
        """Rows that they cover."""
        if self.placed is not None:
            return self.placed.num_rows
        if self.runs:
            return self.runs[-1].stop
        return 0 if self.shared is None else self.shared.num_rows

"""Figures of repeated runs: their medians, how far runs lie apart, and what that makes of a difference."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Literal, NamedTuple

Verdict = Literal["better", "worse", "same", "unknown"]
_MIN_RUNS = 2  # with fewer nobody knows how far runs lie apart


class Spread(NamedTuple):
    """One figure of repeated runs.

    Attributes:
        runs: its value in each.
    """

    runs: Sequence[float]

    @property
    def median(self) -> float:
        """Of the runs."""
        return median(self.runs)

    @property
    def noise(self) -> float | None:
        """Half of the way from the smallest to the largest, as a share of the median; None where one can't know."""
        if len(self.runs) < _MIN_RUNS or not self.median:
            return None
        return (max(self.runs) - min(self.runs)) / 2 / abs(self.median)


class Difference(NamedTuple):
    """A figure held against another.

    Attributes:
        ratio: of the medians, the figure's over the base's; None where the base is 0.
        noise: of both together, as a share; None where one can't know.
        verdict: better or worse where no run of one lies among those of the other; else the same.
    """

    ratio: float | None
    noise: float | None
    verdict: Verdict


def hold_against(own: Spread, base: Spread, *, more_is_better: bool) -> Difference:
    """How a figure differs from the base's, and whether that is more than noise."""
    ratio = own.median / base.median if base.median else None
    noise = None if own.noise is None or base.noise is None else own.noise + base.noise
    if noise is None or ratio is None:
        return Difference(ratio, noise, "unknown")
    if min(own.runs) > max(base.runs):
        return Difference(ratio, noise, "better" if more_is_better else "worse")
    if max(own.runs) < min(base.runs):
        return Difference(ratio, noise, "worse" if more_is_better else "better")
    return Difference(ratio, noise, "same")

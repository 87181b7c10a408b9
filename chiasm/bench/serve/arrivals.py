"""When the requests of a benchmark are sent.

Gaps between requests are drawn from a gamma distribution of shape ``burstiness`` and mean ``1 / rate``: 1 makes a
Poisson process, less makes bursts, more makes an even stream. As in vLLM's benchmark, the gaps of a constant rate are
scaled so that the last request comes after ``count / rate`` seconds, whatever was drawn. The numbers are drawn as
there, too: with one seed both send at the same moments.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from chiasm.errors import UserError, refuse

RampUpStrategy = Literal["linear", "exponential"]


class RampUp(NamedTuple):
    """A rate that grows from the first request to the last.

    Attributes:
        strategy: how it grows.
        start: requests a second at the beginning.
        end: requests a second at the end.
    """

    strategy: RampUpStrategy
    start: float
    end: float

    def rates(self, count: int) -> list[float]:
        """The rate at each of ``count`` requests."""
        shares = [index / max(count - 1, 1) for index in range(count)]
        if self.strategy == "linear":
            return [self.start + (self.end - self.start) * share for share in shares]
        return [self.start * (self.end / self.start) ** share for share in shares]


@dataclass(frozen=True)
class Arrivals:
    """How requests come.

    Attributes:
        request_rate: requests a second; infinite sends all at once.
        burstiness: shape of the gamma distribution of the gaps; infinite makes all equal.
        ramp_up: a growing rate in place of the constant one.

    Raises:
        UserError: for a value out of range, naming the flag.
    """

    request_rate: float = math.inf
    burstiness: float = 1.0
    ramp_up: RampUp | None = None

    def __post_init__(self) -> None:
        """Check."""
        if not self.request_rate > 0:
            refuse("request_rate", self.request_rate, "above 0, or inf")
        if not self.burstiness > 0:
            refuse("burstiness", self.burstiness, "above 0, or inf")
        if self.ramp_up is None:
            return
        if not math.isinf(self.request_rate):
            raise UserError("request_rate and a ramp-up exclude each other.", param="request_rate")
        if not 0 < self.ramp_up.start <= self.ramp_up.end < math.inf:
            refuse("ramp_up_start_rps", self.ramp_up.start, f"above 0 and at most ramp_up_end_rps={self.ramp_up.end}")

    def times(self, count: int, seed: int) -> list[float]:
        """Seconds from the beginning at which each of ``count`` requests is sent."""
        rng = np.random.RandomState(seed)
        if self.ramp_up is not None:
            return _running_sum(self.ramp_up.rates(count), self._gap(rng))
        if math.isinf(self.request_rate):
            return [0.0] * count
        times = _running_sum([self.request_rate] * count, self._gap(rng))
        if not times[-1]:  # a burst so dense that no gap is above 0
            return times
        scale = count / self.request_rate / times[-1]
        return [time * scale for time in times]

    def _gap(self, rng: np.random.RandomState) -> Callable[[float], float]:
        if math.isinf(self.burstiness):
            return lambda rate: 1 / rate
        return lambda rate: float(rng.gamma(self.burstiness, 1 / (rate * self.burstiness)))


def _running_sum(rates: list[float], gap: Callable[[float], float]) -> list[float]:
    return [float(time) for time in np.cumsum([gap(rate) for rate in rates])]

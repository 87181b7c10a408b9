"""What a server must not hold any more once nobody asks anything of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

HELD = (
    "chiasm:answers_in_flight",
    "chiasm:body_bytes_in_flight",
    "chiasm:pixel_bytes_in_flight",
    "chiasm:num_requests_running",
    "chiasm:num_requests_waiting",
    "chiasm:kv_cache_usage_perc",
    "chiasm:encoder_cache_usage_perc",
)
"""Places, bodies, room for pixels, sequences, blocks of the KV cache, and pinned features."""


def held(samples: Mapping[str, float]) -> dict[str, float]:
    """Of the samples of ``/metrics``, those that are not zero and should be.

    Raises:
        KeyError: if one is missing.
    """
    return {name: samples[name] for name in HELD if samples[name]}


def await_idle(read_samples: Callable[[], Mapping[str, float]], seconds: float = 10) -> dict[str, float]:
    """Wait until nothing is held; returns what still is after so long."""
    deadline = time.monotonic() + seconds
    while (left := held(read_samples())) and time.monotonic() < deadline:
        time.sleep(0.05)
    return left


def parse_samples(text: str) -> dict[str, float]:
    """The samples of Prometheus' text format; a name's labels are part of it."""
    lines = (line.rpartition(" ") for line in text.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}

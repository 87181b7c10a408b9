"""Memory of a server's processes over time, and how it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import psutil

from bench.measure import print_table

_ROLES = {
    "chiasm.engine.core.main": "core",
    "chiasm.engine.executor.rank_main": "rank",
    "chiasm.multimodal.worker": "preprocessing",
    "chiasm.grammar.worker": "grammars",
}


class Resident(NamedTuple):
    """A sample.

    Attributes:
        done: requests so far.
        mebibytes: resident, by process.
    """

    done: int
    mebibytes: dict[str, float]


def sample(pid: int, done: int) -> Resident:
    """Look at a server's main process and at all below it."""
    main = psutil.Process(pid)
    found = {"server": main.memory_info().rss / 2**20}
    for process in main.children(recursive=True):
        try:
            command = process.cmdline()
            rss = process.memory_info().rss / 2**20
        except psutil.NoSuchProcess:  # a worker that was replaced just now
            continue
        role = next((role for module, role in _ROLES.items() if module in command), "other")
        name = f"{role} {command[-1]}" if role == "rank" else role
        found[name] = found.get(name, 0) + rss
    return Resident(done, found)


class Growth(NamedTuple):
    """Of one process.

    Attributes:
        first: MiB when the caches were warm.
        last: MiB at the end.
        slope: MiB for each thousand requests, fitted in between.
    """

    first: float
    last: float
    slope: float


def growth(samples: Sequence[Resident], warm_share: float = 1 / 3) -> dict[str, Growth]:
    """Of each process and of all, after a share of the requests."""
    warm = [one for one in samples if one.done >= warm_share * samples[-1].done]
    names = sorted({name for one in warm for name in one.mebibytes})
    series = {name: [one.mebibytes.get(name, 0.0) for one in warm] for name in names}
    series["all"] = [sum(one.mebibytes.values()) for one in warm]
    done = [one.done / 1000 for one in warm]
    return {name: Growth(values[0], values[-1], _slope(done, values)) for name, values in series.items()}


def _slope(done: Sequence[float], values: Sequence[float]) -> float:
    return float(np.polyfit(done, values, 1)[0]) if len(set(done)) > 1 else 0.0


def print_growth(samples: Sequence[Resident], limit: float) -> list[str]:
    """Print how memory grew; returns a fault if all processes together grew by more than ``limit`` MiB."""
    grown = growth(samples)
    rows = [[name, f"{g.first:.0f}", f"{g.last:.0f}", f"{g.slope:+.1f}"] for name, g in grown.items()]
    columns = ("process", "after a third, MiB", "at the end, MiB", "slope, MiB for 1,000 requests")
    print_table("Resident memory", columns, rows)
    together = grown["all"].last - grown["all"].first
    return [f"memory grew by {together:.0f} MiB, above {limit:g}"] if together > limit else []

"""Results of ``bench serve``, this one's or vLLM's, read again and gathered by what was run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from chiasm.bench.spread import Spread
from chiasm.errors import UserError, refuse


class Figure(NamedTuple):
    """A figure of a result.

    Attributes:
        key: of the JSON file.
        title: with its unit.
        more_is_better: whether it is a throughput.
    """

    key: str
    title: str
    more_is_better: bool


def latency_figures(metric: str) -> list[Figure]:
    """Mean, median and 99th percentile of ``ttft``, ``tpot``, ``itl`` or ``e2el``."""
    names = {"mean": "mean", "median": "median", "p99": "P99"}
    return [Figure(f"{key}_{metric}_ms", f"{name} {metric.upper()} (ms)", False) for key, name in names.items()]


FIGURES = (
    Figure("request_throughput", "requests/s", True),
    Figure("output_throughput", "output tokens/s", True),
    Figure("total_token_throughput", "tokens/s", True),
    *latency_figures("ttft"),
    *latency_figures("tpot"),
    *latency_figures("itl"),
    *latency_figures("e2el"),
)
"""What is compared, where all results have it."""


class Group(NamedTuple):
    """Runs of the same thing.

    Attributes:
        name: of the thing.
        runs: their results.
    """

    name: str
    runs: Sequence[Mapping[str, Any]]

    @property
    def rates(self) -> list[float]:
        """Requests a second of the runs, each once, infinite last."""
        return sorted({rate_of(run) for run in self.runs})

    def at(self, rate: float) -> Group:
        """The runs with this rate."""
        return Group(self.name, [run for run in self.runs if rate_of(run) == rate])

    def spread(self, key: str) -> Spread:
        """A figure of the runs."""
        return Spread([float(run[key]) for run in self.runs])

    def gathered(self, key: str) -> list[float]:
        """A list of all runs, in seconds, such as ``ttfts``; empty where results have no details."""
        values = [value for run in self.runs for value in run.get(key) or ()]
        return [gap for value in values for gap in (value if isinstance(value, list) else [value])]


def rate_of(run: Mapping[str, Any]) -> float:
    """Requests a second that a run was sent; infinite where all came at once."""
    return float(run.get("request_rate") or math.inf)


def read_groups(files: Sequence[Path]) -> list[Group]:
    """The results of files, those with one label together; a file without a label has its own name for one.

    Raises:
        UserError: if a file is no result.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for file in files:
        result = _read(file)
        groups.setdefault(str(result.get("label") or file.stem), []).append(result)
    return [Group(name, runs) for name, runs in groups.items()]


def common_figures(groups: Sequence[Group]) -> list[Figure]:
    """The figures that every run has."""
    runs = [run for group in groups for run in group.runs]
    return [figure for figure in FIGURES if all(isinstance(run.get(figure.key), int | float) for run in runs)]


def _read(file: Path) -> dict[str, Any]:
    try:
        result = msgspec.json.decode(file.read_bytes())
    except OSError as error:
        raise UserError(f"{file} can't be read: {error.strerror}.", param="files") from error
    except msgspec.DecodeError as error:
        raise UserError(f"{file} is not valid JSON: {error}.", param="files") from error
    if not isinstance(result, dict) or "request_throughput" not in result:
        refuse("files", str(file), "results of bench serve, with request_throughput")
    return result

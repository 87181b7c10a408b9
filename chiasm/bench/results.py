"""Results of ``bench serve``, this one's or vLLM's, read again and gathered by what was run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from chiasm.bench.spread import Spread
from chiasm.errors import UserError


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
        """``ttfts`` or ``itls`` of all successful requests, in seconds; empty where results have no details."""
        values = [value for run in self.runs for value in _of_successful(run, key)]
        return [gap for value in values for gap in (value if isinstance(value, list) else [value])]

    def differing(self, keys: Sequence[str]) -> list[str]:
        """Those keys whose values are not the same in all runs."""
        return [key for key in keys if len({repr(run.get(key)) for run in self.runs}) > 1]

    @property
    def num_failed(self) -> int:
        """Requests that failed, of all runs."""
        return sum(run.get("failed") or 0 for run in self.runs)


class _Result(msgspec.Struct):
    """What must be right in a file for it to be compared."""

    request_throughput: float
    request_rate: float | Literal["inf"] | None = None
    failed: int | None = None
    ttfts: list[float] | None = None
    itls: list[list[float]] | None = None
    errors: list[str] | None = None


def rate_of(run: Mapping[str, Any]) -> float:
    """Requests a second that a run was sent; infinite where all came at once."""
    return float(run.get("request_rate") or math.inf)


def read_groups(files: Sequence[Path]) -> list[Group]:
    """The results of files, those with one label together; a file without a label has its own name for one.

    Runs whose rate grew are held apart from those that sent everything at once.

    Raises:
        UserError: if a file is no result.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for file in files:
        for result in _read(file):
            groups.setdefault(_name(result, file), []).append(result)
    return [Group(name, runs) for name, runs in groups.items()]


def common_figures(groups: Sequence[Group]) -> list[Figure]:
    """The figures that every run has; latencies that are 0 in all, such as TPOT of answers of one token, are none."""
    runs = [run for group in groups for run in group.runs]
    return [figure for figure in FIGURES if _is_measured(figure, [run.get(figure.key) for run in runs])]


def _is_measured(figure: Figure, values: Sequence[object]) -> bool:
    return all(map(_is_number, values)) and (figure.more_is_better or any(values))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _of_successful(run: Mapping[str, Any], key: str) -> Sequence[Any]:
    values, errors = run.get(key) or [], run.get("errors") or []
    if len(values) != len(errors):
        return values
    return [value for value, error in zip(values, errors, strict=True) if not error]


def _name(result: Mapping[str, Any], file: Path) -> str:
    name = " ".join(str(result.get("label") or file.stem).split())
    if result.get("ramp_up_strategy") is None:
        return name
    return f"{name}, {result.get('ramp_up_start_rps')} to {result.get('ramp_up_end_rps')}/s"


def _read(file: Path) -> list[dict[str, Any]]:
    """The results of a file; vLLM's ``--append-result`` writes one after another."""
    try:
        results = list(_objects(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise UserError(f"{file} can't be read: {error.strerror}.", param="files") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file} is not valid JSON: {error}.", param="files") from error
    for result in results:
        try:
            msgspec.convert(result, _Result)
        except msgspec.ValidationError as error:
            raise UserError(f"{file} is not a result of bench serve: {error}.", param="files") from error
    return results


def _objects(text: str) -> Iterator[Any]:
    """Values one after another, one at least; ``NaN`` and ``Infinity`` are no JSON, but Python writes them."""
    decoder, rest = json.JSONDecoder(), text.strip()
    while True:
        value, end = decoder.raw_decode(rest)
        yield value
        rest = rest[end:].lstrip()
        if not rest:
            return

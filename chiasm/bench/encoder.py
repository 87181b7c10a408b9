"""``chiasm bench encoder``: the ways to place vision work on ranks, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from chiasm.bench.baseline import whole_items
from chiasm.bench.workloads import Workload, units_of
from chiasm.config.engine import EncoderMode
from chiasm.errors import UserError
from chiasm.schema.media import Unit
from chiasm.schema.plan import VisionPlan
from chiasm.vision.cost import CostModel
from chiasm.vision.plan import plan_vision

WHOLE_ITEMS = "whole-items"
MODES = (WHOLE_ITEMS, "data", "auto", "weights")


class Measured(NamedTuple):
    """A plan that was run.

    Attributes:
        seconds: from the start to the last feature on every rank.
        alone_seconds: the same work on one rank.
        peak_memory_bytes: of each rank.
    """

    seconds: float
    alone_seconds: float
    peak_memory_bytes: tuple[int, ...]


Measure = Callable[[str, VisionPlan], Measured]
"""Runs a plan that one of ``MODES`` made."""


class Row(msgspec.Struct, frozen=True):
    """A workload in one mode; figures are means over its batches, peaks are the largest.

    Attributes:
        workload: its name.
        mode: of ``MODES``.
        ranks: how many.
        efficiency: T1 / (ranks * T), measured where it was run, else predicted.
        predicted_seconds: makespan by the cost model.
        measured_seconds: makespan; None where it was not run.
        bytes: received by all ranks together, by the cost model.
        peak_memory_bytes: of each rank; None where it was not run.
        reasons: the planner's own words, each once.
    """

    workload: str
    mode: str
    ranks: int
    efficiency: float
    predicted_seconds: float
    measured_seconds: float | None
    bytes: int
    peak_memory_bytes: tuple[int, ...] | None
    reasons: tuple[str, ...]


class _Result(NamedTuple):
    """One batch in one mode."""

    plan: VisionPlan
    num_bytes: int
    efficiency: float
    measured: Measured | None


def bench_workload(workload: Workload, model: CostModel, measure: Measure | None = None) -> list[Row]:
    """A row for each mode that the tower allows.

    Args:
        workload: what to encode.
        model: the tower, and the ranks it is predicted for.
        measure: runs it as well.

    Raises:
        UserError: if the workload does not fit the tower.
    """
    batches = [units_of(batch, model.shape) for batch in workload.batches]
    rows = []
    for mode in modes_of(model):
        results = [_run(mode, items, model, measure) for items in batches]
        rows.append(_row(workload.name, mode, model.num_ranks, results))
    return rows


def modes_of(model: CostModel) -> list[str]:
    """The modes that the tower's heads allow."""
    can_shard = model.shape.num_heads % model.num_ranks == 0
    return [mode for mode in MODES if mode != "weights" or can_shard]


def plan_mode(mode: str, items: Sequence[Sequence[Unit]], model: CostModel) -> VisionPlan:
    """The plan of one of ``MODES``."""
    if mode == WHOLE_ITEMS:
        assignments = whole_items(items, model.num_ranks)
        return VisionPlan(assignments, "whole items by patch count", model.price(assignments).makespan)
    units = [unit for item in items for unit in item]
    return plan_vision(units, num_ranks=model.num_ranks, mode=_encoder_mode(mode), model=model)


def _encoder_mode(mode: str) -> EncoderMode:
    for known in ("weights", "data", "auto"):
        if mode == known:
            return known
    raise UserError(f"mode must be one of {', '.join(MODES)}.", param="mode")


def _run(mode: str, items: Sequence[Sequence[Unit]], model: CostModel, measure: Measure | None) -> _Result:
    plan = plan_mode(mode, items, model)
    measured = measure(mode, plan) if measure else None
    if measured:
        alone, seconds = measured.alone_seconds, measured.seconds
    else:
        alone, seconds = model.alone_seconds([model.work(unit) for unit in plan.units]), plan.predicted_seconds
    num_bytes = sum(model.price(plan.assignments).exchanged_bytes)
    return _Result(plan, num_bytes, alone / (model.num_ranks * seconds), measured)


def _row(workload: str, mode: str, num_ranks: int, results: Sequence[_Result]) -> Row:
    measured = [result.measured for result in results if result.measured]
    peaks = [one.peak_memory_bytes for one in measured]
    return Row(
        workload=workload,
        mode=mode,
        ranks=num_ranks,
        efficiency=fmean(result.efficiency for result in results),
        predicted_seconds=fmean(result.plan.predicted_seconds for result in results),
        measured_seconds=fmean(one.seconds for one in measured) if measured else None,
        bytes=round(fmean(result.num_bytes for result in results)),
        peak_memory_bytes=tuple(map(max, zip(*peaks, strict=True))) if peaks else None,
        reasons=tuple(dict.fromkeys(result.plan.reason for result in results)),
    )

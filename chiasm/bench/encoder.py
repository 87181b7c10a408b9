"""``chiasm bench encoder``: the ways to place vision work on ranks, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from chiasm.bench.baseline import whole_items
from chiasm.bench.trace import Chart
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
        cut_bytes: received by all ranks within the tower, for units that are cut.
        peak_memory_bytes: of each rank, weights included; None where the system does not tell.
    """

    seconds: float
    alone_seconds: float
    cut_bytes: int
    peak_memory_bytes: tuple[int, ...] | None


class BatchResult(NamedTuple):
    """One batch in one mode.

    Attributes:
        plan: what was, or would be, run.
        model: that predicted it.
        measured: None where it was not run.
    """

    plan: VisionPlan
    model: CostModel
    measured: Measured | None = None

    @property
    def is_cut(self) -> bool:
        """Whether ranks share a unit."""
        return any(assignment.is_cut for assignment in self.plan.assignments)

    @property
    def efficiency(self) -> float:
        """T1 / (ranks * T)."""
        if self.measured:
            alone, seconds = self.measured.alone_seconds, self.measured.seconds
        else:
            alone = self.model.alone_seconds([self.model.work(unit) for unit in self.plan.units])
            seconds = self.plan.predicted_seconds
        return alone / (self.model.num_ranks * seconds)


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
        cut_bytes: of these, what they receive within the tower for units that are cut; None where none is.
        measured_cut_bytes: what they did receive for them; None where none is cut, or nothing was run.
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
    cut_bytes: int | None
    measured_cut_bytes: int | None
    peak_memory_bytes: tuple[int, ...] | None
    reasons: tuple[str, ...]


class Outcome(NamedTuple):
    """What a benchmark found.

    Attributes:
        rows: one for every workload, number of ranks and mode.
        charts: what the ranks did when; empty where nobody asked.
    """

    rows: list[Row]
    charts: list[Chart]


def predict(workload: Workload, model: CostModel) -> list[Row]:
    """A row for each mode that the tower allows.

    Raises:
        UserError: if the workload does not fit the tower.
    """
    batches = [units_of(batch, model.shape) for batch in workload.batches]
    return [
        row_of(workload.name, mode, [BatchResult(plan_mode(mode, items, model), model) for items in batches])
        for mode in modes_of(model)
    ]


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


def row_of(workload: str, mode: str, results: Sequence[BatchResult]) -> Row:
    """The row of a workload's batches."""
    measured = [result.measured for result in results if result.measured]
    costs = [result.model.price(result.plan.assignments) for result in results]
    is_cut = any(result.is_cut for result in results)
    peaks = [one.peak_memory_bytes for one in measured if one.peak_memory_bytes]
    return Row(
        workload=workload,
        mode=mode,
        ranks=results[0].model.num_ranks,
        efficiency=fmean(result.efficiency for result in results),
        predicted_seconds=fmean(result.plan.predicted_seconds for result in results),
        measured_seconds=fmean(one.seconds for one in measured) if measured else None,
        bytes=round(fmean(sum(cost.exchanged_bytes) for cost in costs)),
        cut_bytes=round(fmean(sum(cost.cut_bytes) for cost in costs)) if is_cut else None,
        measured_cut_bytes=round(fmean(one.cut_bytes for one in measured)) if is_cut and measured else None,
        peak_memory_bytes=tuple(map(max, zip(*peaks, strict=True))) if peaks else None,
        reasons=tuple(dict.fromkeys(result.plan.reason for result in results)),
    )

"""``chiasm bench encoder --simulate``: what the cost model says of ranks that are not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from chiasm.bench.encoder import Row, modes_of, plan_mode, predict
from chiasm.bench.machines import QWEN3_VL_8B
from chiasm.bench.report import write_rows
from chiasm.bench.trace import Timeline, predicted_timeline, write_trace
from chiasm.bench.workloads import Workload, find_workloads, units_of
from chiasm.schema.facts import EncoderRates, EncoderShape
from chiasm.vision.cost import CostModel


def simulate(
    model: str | None,
    workload: str,
    num_ranks: Sequence[int],
    rates: EncoderRates,
    *,
    json_file: Path | None = None,
    trace_file: Path | None = None,
) -> list[Row]:
    """Rows for every workload, number of ranks and mode, also written to files where asked for.

    Args:
        model: the checkpoint whose tower it is; None takes that of Qwen3-VL-8B.
        workload: a name, "named" for all, or a JSON file.
        num_ranks: each is simulated.
        rates: of a rank and its link.
        json_file: gets the rows.
        trace_file: gets the timeline of each workload's first batch.

    Raises:
        UserError: for a model or workload that can't be used.
    """
    shape = _shape_of(model)
    workloads = find_workloads(workload)
    cost_models = [CostModel(shape, rates, size) for size in num_ranks]
    rows = [row for one in workloads for costs in cost_models for row in predict(one, costs)]
    if json_file:
        write_rows(json_file, rows)
    if trace_file:
        write_trace(
            trace_file, [line for one in workloads for costs in cost_models for line in _timelines(one, costs)]
        )
    return rows


def _shape_of(model: str | None) -> EncoderShape:
    if model is None:
        return QWEN3_VL_8B
    from chiasm.bench.checkpoint import checkpoint_shape  # takes torch, which nothing else here does

    return checkpoint_shape(model)


def _timelines(workload: Workload, costs: CostModel) -> Iterator[Timeline]:
    items = units_of(workload.batches[0], costs.shape)
    for mode in modes_of(costs):
        cost = costs.price(plan_mode(mode, items, costs).assignments)
        yield predicted_timeline(f"{workload.name}, {mode}, {costs.num_ranks} ranks", cost, costs)

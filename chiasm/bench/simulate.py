"""``chiasm bench encoder --simulate``: what the cost model says of ranks that are not there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from chiasm.bench.encoder import Outcome, modes_of, plan_mode, predict
from chiasm.bench.machines import QWEN3_VL_8B
from chiasm.bench.trace import Chart, predicted_chart
from chiasm.bench.workloads import Workload, find_workloads, units_of
from chiasm.schema.facts import EncoderRates, EncoderShape
from chiasm.vision.cost import CostModel


def simulate(
    model: str | None,
    workload: str,
    num_ranks: Sequence[int],
    rates: EncoderRates,
    *,
    with_charts: bool,
) -> Outcome:
    """Rows for every workload, number of ranks and mode.

    Args:
        model: the checkpoint whose tower it is; None takes that of Qwen3-VL-8B.
        workload: a name, "named" for all, or a JSON file.
        num_ranks: each is simulated.
        rates: of a rank and its link.
        with_charts: whether each workload's first batch is charted too.

    Raises:
        UserError: for a model or workload that can't be used.
    """
    shape = _shape_of(model)
    workloads = find_workloads(workload)
    cost_models = [CostModel(shape, rates, size) for size in num_ranks]
    rows = [row for one in workloads for costs in cost_models for row in predict(one, costs)]
    drawn = workloads if with_charts else []
    return Outcome(rows, [chart for one in drawn for costs in cost_models for chart in _charts(one, costs)])


def _shape_of(model: str | None) -> EncoderShape:
    if model is None:
        return QWEN3_VL_8B
    from chiasm.bench.checkpoint import checkpoint_shape  # takes torch, which nothing else here does

    return checkpoint_shape(model)


def _charts(workload: Workload, costs: CostModel) -> Iterator[Chart]:
    items = units_of(workload.batches[0], costs.shape)
    for mode in modes_of(costs):
        cost = costs.price(plan_mode(mode, items, costs).assignments)
        yield predicted_chart(f"{workload.name}, {mode}, {costs.num_ranks} ranks", cost, costs)

"""Which rank encodes which unit. Pure and deterministic: made once, in the scheduler, and sent to every rank."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from chiasm.config.engine import EncoderMode
from chiasm.schema.media import Unit
from chiasm.schema.plan import VisionPlan


def plan_vision(
    units: Sequence[Unit], *, num_ranks: int, mode: EncoderMode, cost: Callable[[Unit], float]
) -> VisionPlan:
    """Place units on ranks.

    Args:
        units: what to encode, each unit once.
        num_ranks: ranks that share the work.
        mode: ``weights`` has every rank compute its part of every unit; ``data`` and ``auto`` give whole units to
            ranks, the costliest first, each to the rank with the least work so far.
        cost: work of a unit, in any unit of measure.

    Returns:
        The plan, with the reason in one sentence.
    """
    if mode == "weights" and num_ranks > 1:
        return VisionPlan(tuple(units), (), f"weights: all {num_ranks} ranks compute their heads of every unit")
    if num_ranks == 1:
        return VisionPlan(tuple(units), (0,) * len(units), "one rank: it computes every unit")
    owners = _longest_first([cost(unit) for unit in units], num_ranks)
    return VisionPlan(tuple(units), tuple(owners), f"{mode}: whole units, the costliest first, on {num_ranks} ranks")


def _longest_first(costs: Sequence[float], num_ranks: int) -> list[int]:
    """The units' owners; ties go to the earlier unit and the lower rank."""
    owners = [0] * len(costs)
    loads = [0.0] * num_ranks
    for index in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        rank = min(range(num_ranks), key=loads.__getitem__)
        owners[index] = rank
        loads[rank] += costs[index]
    return owners

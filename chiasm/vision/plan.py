"""Which rank encodes which rows. Pure and deterministic: made once, in the scheduler, and sent to every rank."""

from __future__ import annotations

from collections.abc import Sequence

from chiasm.config.engine import EncoderMode
from chiasm.schema.media import Unit
from chiasm.schema.plan import Assignment, Share, VisionPlan
from chiasm.vision.choose import Placed, Placement, PlacementSearch
from chiasm.vision.cost import CostModel


def plan_vision(
    units: Sequence[Unit], *, num_ranks: int, mode: EncoderMode, model: CostModel, min_units_per_rank: int = 0
) -> VisionPlan:
    """Place units on ranks.

    Args:
        units: what to encode, each unit once, in order of first need.
        num_ranks: ranks that share the work.
        mode: ``weights`` has every rank compute its heads of every unit; ``data`` gives whole units to ranks, the
            costliest first; ``auto`` also cuts units by rows where that is predicted to gain.
        model: predicts what a placement takes.
        min_units_per_rank: whole units that every rank gets at least, as far as they go; above 0 nothing is cut.

    Returns:
        The plan, with the reason in one sentence of few possible ones.
    """
    assert num_ranks == model.num_ranks
    if num_ranks == 1 or mode == "weights" or not units:
        return _unplaced(units, num_ranks, mode, model)
    placement = _placement(PlacementSearch(units, model), num_ranks, mode, min_units_per_rank)
    reason = _reason(mode, num_ranks, placement, min_units_per_rank)
    return VisionPlan(_assignments(units, placement), reason, placement.cost.makespan)


def _unplaced(units: Sequence[Unit], num_ranks: int, mode: EncoderMode, model: CostModel) -> VisionPlan:
    """A plan where there is nothing to choose."""
    if num_ranks == 1:
        assignments = tuple(Assignment(unit, (Share(0, 0, unit.num_rows),)) for unit in units)
        reason = "one rank: it computes every unit"
    else:
        assignments = tuple(Assignment(unit, ()) for unit in units)
        reason = f"{mode}: all {num_ranks} ranks compute their heads of every unit" if units else "no units"
    return VisionPlan(assignments, reason, model.price(assignments).makespan if units else 0.0)


def _placement(search: PlacementSearch, num_ranks: int, mode: EncoderMode, min_units_per_rank: int) -> Placement:
    if min_units_per_rank:
        smallest = search.order[: -min_units_per_rank * num_ranks - 1 : -1]
        return search.whole([(index, place % num_ranks) for place, index in enumerate(smallest)])
    return search.best() if mode == "auto" else search.whole()


def _assignments(units: Sequence[Unit], placement: Placement) -> tuple[Assignment, ...]:
    """The plan's assignments; among units of one grid the places are dealt anew, which changes no load.

    A video's frames then lie on the ranks in order, in runs without gaps, and those that are cut between the runs.
    """
    by_grid: dict[tuple[int, int], list[int]] = {}
    for index, unit in enumerate(units):
        by_grid.setdefault(unit.grid, []).append(index)
    dealt = dict(placement.placed)
    for indices in by_grid.values():
        if len(indices) > 1:
            places = sorted((placement.placed[index] for index in indices), key=_ranks_of)
            dealt.update(zip(indices, places, strict=True))
    return tuple(Assignment(unit, *dealt[index]) for index, unit in enumerate(units))


def _ranks_of(place: Placed) -> tuple[int, ...]:
    shares = place.shares
    return (shares[0].rank,) if len(shares) == 1 else tuple(sorted(share.rank for share in shares))


def _reason(mode: EncoderMode, num_ranks: int, placement: Placement, min_units_per_rank: int) -> str:
    """Few different ones: it labels a metric."""
    if min_units_per_rank:
        return f"{mode}: whole units on {num_ranks} ranks, {min_units_per_rank} on each at least"
    if mode == "data":
        return f"data: whole units, the costliest first, on {num_ranks} ranks"
    if placement.why_whole:
        return f"auto: whole units on {num_ranks} ranks, {placement.why_whole}"
    exchanges = sorted({place.exchange for place in placement.placed.values() if len(place.shares) > 1})
    return f"auto: units cut by rows evened out the loads of {num_ranks} ranks, by {' and '.join(exchanges)}"

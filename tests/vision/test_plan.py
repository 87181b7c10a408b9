"""Placement of units on ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from chiasm.schema.facts import EncoderShape
from chiasm.schema.media import PixelRef, Unit
from chiasm.vision.cost import unit_cost
from chiasm.vision.plan import plan_vision

_SHAPE = EncoderShape(
    hidden_size=1280,
    intermediate_size=3420,
    mlp_matrices=3,
    num_layers=32,
    num_full_attention_layers=4,
    window_patches=64,
    num_heads=16,
)


def unit(num_patches: int, name: str = "") -> Unit:
    return Unit(name or str(num_patches), (2, num_patches // 2), num_patches // 4, PixelRef("", 0, num_patches, 1))


def _cost(one: Unit) -> float:
    return unit_cost(_SHAPE, one)


def test_units_are_balanced_by_true_cost_not_by_patches() -> None:
    """One unit of 16,384 patches weighs more than sixteen of 1,024: its attention is quadratic."""
    big, small = unit(16384), [unit(1024, f"s{i}") for i in range(16)]
    assert _cost(big) > sum(map(_cost, small))
    plan = plan_vision([*small, big], num_ranks=2, mode="data", cost=_cost)
    assert len(set(plan.owners[:16])) == 1, "all the small ones share the other rank"
    assert plan.owners[16] != plan.owners[0]


def test_one_rank_owns_everything() -> None:
    assert plan_vision([unit(8), unit(16)], num_ranks=1, mode="weights", cost=_cost).owners == (0, 0)


def test_weights_has_no_owners() -> None:
    assert plan_vision([unit(8), unit(16)], num_ranks=2, mode="weights", cost=_cost).owners == ()


@given(
    costs=st.lists(st.integers(1, 100), min_size=1, max_size=40),
    num_ranks=st.integers(1, 8),
)
def test_no_rank_is_far_above_the_fair_share(costs: list[int], num_ranks: int) -> None:
    """Graham's bound for longest-first: at most 4/3 - 1/(3N) of the best makespan."""
    units = [unit(4, f"u{i}") for i in range(len(costs))]
    by_name = dict(zip((one.key for one in units), map(float, costs), strict=True))
    plan = plan_vision(units, num_ranks=num_ranks, mode="auto", cost=lambda one: by_name[one.key])
    loads = [0.0] * num_ranks
    for one, owner in zip(plan.units, plan.owners, strict=True):
        loads[owner] += by_name[one.key]
    by_size = sorted(costs, reverse=True)
    pair = by_size[num_ranks - 1] + by_size[num_ranks] if len(costs) > num_ranks else 0
    lower_bound = max(sum(costs) / num_ranks, by_size[0], pair)
    assert max(loads) <= (4 / 3 - 1 / (3 * num_ranks)) * lower_bound * 4 / 3
    again = plan_vision(units, num_ranks=num_ranks, mode="auto", cost=lambda one: by_name[one.key])
    assert plan == again
    assert plan.reason

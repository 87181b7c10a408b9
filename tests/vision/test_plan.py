"""Placement of units and rows on ranks."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chiasm.bench.machines import QWEN3_VL_8B
from chiasm.schema.facts import EncoderRates, EncoderShape
from chiasm.schema.media import Unit
from chiasm.schema.plan import VisionPlan
from chiasm.vision.choose import fill_up
from chiasm.vision.cost import CostModel
from chiasm.vision.plan import plan_vision
from chiasm.vision.units import nearest_border
from tests.vision.shapes import CPU, GPU, QWEN2_5_VL, QWEN3_VL, Grid, mixes, unit, units_of

TOWERS = st.sampled_from([QWEN3_VL, QWEN2_5_VL])
MACHINES = st.sampled_from([GPU, CPU])
RANKS = st.sampled_from([1, 2, 3, 4, 8])


def owners(plan: VisionPlan) -> list[int]:
    """Of whole units."""
    assert not any(one.is_cut for one in plan.assignments)
    return [one.shares[0].rank for one in plan.assignments]


def loads(plan: VisionPlan, model: CostModel) -> list[float]:
    found = [0.0] * model.num_ranks
    for one, rank in zip(plan.assignments, owners(plan), strict=True):
        found[rank] += model.work(one.unit).seconds
    return found


def check(plan: VisionPlan, units: list[Unit], model: CostModel) -> None:
    """Every unit's rows once, at allowed borders, none empty, each share another rank's."""
    assert list(plan.units) == units
    shape = model.shape
    for one in plan.assignments:
        assert [share.start for share in one.shares] == [0, *(share.stop for share in one.shares[:-1])]
        assert one.shares[-1].stop == one.unit.num_rows
        assert all(share.num_rows > 0 for share in one.shares)
        ranks = [share.rank for share in one.shares]
        assert len(set(ranks)) == len(ranks)
        assert set(ranks) <= set(range(model.num_ranks))
        for share in one.shares:
            assert nearest_border(one.unit.grid, shape.merge_size, shape.window_blocks, share.stop) == share.stop
        assert one.is_cut == (one.exchange != "none")
        if one.exchange == "all-to-all":
            assert shape.num_heads % len(one.shares) == 0


@given(grids=mixes(), shape=TOWERS, rates=MACHINES, num_ranks=RANKS)
def test_auto_is_a_right_plan_and_never_worse_than_whole_units(
    grids: list[Grid], shape: EncoderShape, rates: EncoderRates, num_ranks: int
) -> None:
    units, model = units_of(grids), CostModel(shape, rates, num_ranks)
    plan = plan_vision(units, num_ranks=num_ranks, mode="auto", model=model)
    check(plan, units, model)
    assert plan == plan_vision(units, num_ranks=num_ranks, mode="auto", model=CostModel(shape, rates, num_ranks))
    whole = plan_vision(units, num_ranks=num_ranks, mode="data", model=model)
    check(whole, units, model)
    assert not any(one.is_cut for one in whole.assignments)
    assert plan.predicted_seconds <= whole.predicted_seconds
    assert plan.reason
    assert whole.reason
    if units:
        for one in (plan, whole):
            assert one.predicted_seconds == pytest.approx(model.price(one.assignments).makespan)
            assert one.predicted_seconds >= 0.999 * sum(model.work(each).seconds for each in units) / num_ranks


@given(grids=mixes(min_size=1), num_ranks=st.integers(2, 8))
def test_a_tower_that_cannot_be_cut_is_not(grids: list[Grid], num_ranks: int) -> None:
    model = CostModel(msgspec.structs.replace(QWEN3_VL, can_cut_rows=False), GPU, num_ranks)
    owners(plan_vision(units_of(grids), num_ranks=num_ranks, mode="auto", model=model))


@given(grids=mixes(min_size=1), num_ranks=st.integers(2, 8))
def test_no_rank_is_far_above_the_fair_share(grids: list[Grid], num_ranks: int) -> None:
    """Graham's bound for longest-first: at most 4/3 - 1/(3N) of the best makespan."""
    model = CostModel(QWEN3_VL, GPU, num_ranks)
    plan = plan_vision(units_of(grids), num_ranks=num_ranks, mode="data", model=model)
    seconds = sorted((model.work(one).seconds for one in plan.units), reverse=True)
    pair = sum(seconds[num_ranks - 1 : num_ranks + 1]) if len(seconds) > num_ranks else 0
    lower_bound = max(sum(seconds) / num_ranks, seconds[0], pair)
    assert max(loads(plan, model)) <= 4 / 3 * (4 / 3 - 1 / (3 * num_ranks)) * lower_bound


@given(grids=mixes(), num_ranks=st.integers(2, 8))
def test_units_of_one_grid_lie_in_runs(grids: list[Grid], num_ranks: int) -> None:
    """Frame after frame the ranks only go up, and a frame that is cut lies between two runs."""
    model = CostModel(QWEN3_VL, GPU, num_ranks)
    for mode in ("data", "auto"):
        plan = plan_vision(units_of(grids), num_ranks=num_ranks, mode=mode, model=model)
        for grid in set(grids):
            alike = [one for one in plan.assignments if one.unit.grid == grid]
            ranks = [one.shares[0].rank for one in alike if not one.is_cut]
            assert ranks == sorted(ranks)


def test_units_are_balanced_by_true_cost_not_by_patches() -> None:
    """One unit of 16,384 patches weighs more than sixteen of 1,024: its attention is quadratic."""
    model = CostModel(QWEN2_5_VL, GPU, 2)
    units = units_of([(32, 32)] * 16 + [(128, 128)])
    found = owners(plan_vision(units, num_ranks=2, mode="data", model=model))
    assert len(set(found[:16])) == 1, "all the small ones share the other rank"
    assert found[16] != found[0]


def test_nine_images_on_eight_ranks_keep_all_busy() -> None:
    model = CostModel(QWEN3_VL, GPU, 8)
    plan = plan_vision(units_of([(32, 32)] * 9), num_ranks=8, mode="auto", model=model)
    assert sum(one.is_cut for one in plan.assignments) == 1
    whole = plan_vision(units_of([(32, 32)] * 9), num_ranks=8, mode="data", model=model)
    assert plan.predicted_seconds < 0.7 * whole.predicted_seconds


def test_one_huge_image_is_shared_by_all() -> None:
    model = CostModel(QWEN3_VL, GPU, 8)
    (one,) = plan_vision([unit((256, 256))], num_ranks=8, mode="auto", model=model).assignments
    assert [share.num_rows for share in one.shares] == [8192] * 8
    assert one.exchange == "all-to-all"


def test_two_ranks_gather_where_eight_exchange_heads() -> None:
    (one,) = plan_vision([unit((64, 64))], num_ranks=2, mode="auto", model=CostModel(QWEN3_VL, GPU, 2)).assignments
    assert one.exchange == "all-gather"


def test_heads_that_do_not_divide_are_not_exchanged() -> None:
    (one,) = plan_vision([unit((128, 128))], num_ranks=3, mode="auto", model=CostModel(QWEN3_VL, GPU, 3)).assignments
    assert one.is_cut
    assert one.exchange == "all-gather"


def test_a_tiny_image_is_not_worth_an_exchange() -> None:
    (one,) = plan_vision([unit((2, 2))], num_ranks=8, mode="auto", model=CostModel(QWEN3_VL, GPU, 8)).assignments
    assert not one.is_cut


def test_shares_even_out_what_whole_units_leave() -> None:
    """Of three images on two ranks, the smallest fills the gap between the others."""
    model = CostModel(QWEN3_VL, GPU, 2)
    plan = plan_vision(units_of([(64, 64), (56, 56), (48, 48)]), num_ranks=2, mode="auto", model=model)
    cost = model.price(plan.assignments)
    assert sum(one.is_cut for one in plan.assignments) == 1
    assert max(cost.compute_seconds) < 1.01 * min(cost.compute_seconds)


def test_no_units_make_an_empty_plan() -> None:
    for num_ranks in (1, 8):
        for mode in ("weights", "data", "auto"):
            plan = plan_vision([], num_ranks=num_ranks, mode=mode, model=CostModel(QWEN3_VL, GPU, num_ranks))
            assert plan.assignments == ()
            assert plan.predicted_seconds == 0


def test_one_rank_computes_everything() -> None:
    units = units_of([(8, 8), (4, 4)])
    plan = plan_vision(units, num_ranks=1, mode="weights", model=CostModel(QWEN3_VL, GPU, 1))
    assert owners(plan) == [0, 0]


def test_sharded_weights_have_no_shares() -> None:
    plan = plan_vision(units_of([(8, 8), (4, 4)]), num_ranks=2, mode="weights", model=CostModel(QWEN3_VL, GPU, 2))
    assert [one.shares for one in plan.assignments] == [(), ()]
    assert plan.predicted_seconds > 0


def test_a_minimum_is_dealt_round_with_the_smallest_first() -> None:
    """In blocks one rank would get 1 and 2, the other 100 and 101."""
    model = CostModel(QWEN3_VL, GPU, 2)
    units = units_of([(2, 2 * size) for size in (1, 2, 100, 101)])
    plan = plan_vision(units, num_ranks=2, mode="auto", model=model, min_units_per_rank=2)
    patches = [0, 0]
    for one, rank in zip(units, owners(plan), strict=True):
        patches[rank] += one.num_patches // 4
    assert sorted(patches) == [101, 103]


@given(grids=mixes(), num_ranks=st.integers(2, 8), least=st.integers(1, 4))
def test_every_rank_gets_its_minimum(grids: list[Grid], num_ranks: int, least: int) -> None:
    model = CostModel(QWEN3_VL, GPU, num_ranks)
    units = units_of(grids)
    plan = plan_vision(units, num_ranks=num_ranks, mode="auto", model=model, min_units_per_rank=least)
    check(plan, units, model)
    found = owners(plan)
    counts = [found.count(rank) for rank in range(num_ranks)]
    assert min(counts) >= min(least, len(units) // num_ranks)


def test_reasons_are_few() -> None:
    """They label a metric."""
    model = CostModel(QWEN3_VL, GPU, 8)
    mixes_ = [[(2 * i, 2 * j)] * k for i in (1, 8, 40) for j in (3, 20, 60) for k in (1, 3, 9, 17)]
    reasons = {plan_vision(units_of(g), num_ranks=8, mode="auto", model=model).reason for g in mixes_}
    assert len(reasons) <= 5
    assert all(reason.startswith("auto: ") for reason in reasons)


@pytest.mark.parametrize(
    ("grids", "shape", "why"),
    [
        ([(32, 32)] * 800, QWEN3_VL, "cutting one would gain less than 1 %"),
        ([(10, 10)] * 3, QWEN3_VL, "no cut that was tried gains 1 %"),
        ([(128, 128)], msgspec.structs.replace(QWEN3_VL, can_cut_rows=False), "this tower's can't be cut"),
        ([(8, 8), (2, 6)], QWEN2_5_VL, "none has a border to be cut at"),
    ],
)
def test_whole_units_have_a_true_reason(grids: list[Grid], shape: EncoderShape, why: str) -> None:
    plan = plan_vision(units_of(grids), num_ranks=8, mode="auto", model=CostModel(shape, GPU, 8))
    assert plan.reason == f"auto: whole units on 8 ranks, as {why}"


def test_a_large_unit_among_thousands_of_small_ones_is_cut() -> None:
    """However long the rest takes to look at, a cut of the largest is."""
    units = units_of([(128, 128), *[(2, 4)] * 2950])
    plan = plan_vision(units, num_ranks=8, mode="auto", model=CostModel(QWEN3_VL, GPU, 8))
    assert [one.unit.grid for one in plan.assignments if one.is_cut] == [(128, 128)]


@pytest.mark.parametrize(
    ("grids", "shape", "num_ranks", "seconds"),
    [
        ([(56, 38), (68, 40), (64, 14)], QWEN3_VL_8B, 4, 4.0e-3),
        ([(24, 32), (32, 24)], QWEN2_5_VL, 8, 0.6e-3),
        ([(68, 58), (120, 44), (2, 6), (2, 6)], QWEN3_VL_8B, 5, 6.8e-3),
    ],
)
def test_a_sliver_that_rounds_to_nothing_does_not_spoil_a_ribbon(
    grids: list[Grid], shape: EncoderShape, num_ranks: int, seconds: float
) -> None:
    """A rank with 1e-16 of a unit would be priced as if it received all keys and values."""
    plan = plan_vision(units_of(grids), num_ranks=num_ranks, mode="auto", model=CostModel(shape, GPU, num_ranks))
    assert plan.predicted_seconds <= seconds


@given(
    loads=st.lists(st.floats(0, 100), min_size=1, max_size=9),
    amount=st.floats(0.1, 100),
)
def test_filling_up_evens_out_the_lowest(loads: list[float], amount: float) -> None:
    added = fill_up(loads, amount)
    assert sum(added) == pytest.approx(amount)
    after = [load + more for load, more in zip(loads, added, strict=True)]
    raised = [level for level, more in zip(after, added, strict=True) if more > 0]
    assert max(raised) == pytest.approx(min(after))

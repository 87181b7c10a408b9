"""What plans are predicted to take, against sums by hand."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from chiasm.schema.plan import Assignment, Exchange, Share
from chiasm.vision.cost import CostModel
from tests.vision.shapes import CPU, GPU, QWEN2_5_VL, QWEN3_VL, unit

IMAGE = unit((64, 64))
N, D, LAYERS = 4096, 1152, 27
LINEAR = N * LAYERS * (8 * D * D + 4 * D * 4304)
ATTENTION = LAYERS * 4 * D * N * N
GATHERED = N // 4 * 4096 * 2
"""Bytes of all features."""


def model(num_ranks: int, **rates: float) -> CostModel:
    return CostModel(QWEN3_VL, msgspec.structs.replace(GPU, **rates), num_ranks)


def cut(num_ranks: int, exchange: Exchange, start: int = 0) -> Assignment:
    rows = N // num_ranks
    return Assignment(IMAGE, tuple(Share(start + i, i * rows, (i + 1) * rows) for i in range(num_ranks)), exchange)


def test_work_follows_from_the_shapes() -> None:
    work = model(1).work(IMAGE)
    assert work.linear == pytest.approx(LINEAR * GPU.seconds_per_flop)
    assert work.attention == pytest.approx(ATTENTION * GPU.seconds_per_attention_flop)


def test_windows_are_linear_work_and_only_full_layers_are_quadratic() -> None:
    work = CostModel(QWEN2_5_VL, GPU, 1).work(IMAGE)
    dense = 8 * 1280**2 + 6 * 1280 * 3420
    assert work.linear == pytest.approx(N * (32 * dense + 28 * 4 * 1280 * 64) * GPU.seconds_per_flop)
    assert work.attention == pytest.approx(4 * 4 * 1280 * N * N * GPU.seconds_per_attention_flop)


def test_a_unit_smaller_than_a_window_attends_to_itself() -> None:
    work = CostModel(QWEN2_5_VL, GPU, 1).work(unit((4, 4)))
    dense = 8 * 1280**2 + 6 * 1280 * 3420
    assert work.linear == pytest.approx(16 * (32 * dense + 28 * 4 * 1280 * 16) * GPU.seconds_per_flop)


def test_work_outside_the_layers_counts() -> None:
    more = CostModel(msgspec.structs.replace(QWEN3_VL, outer_flops=1000), GPU, 1).work(IMAGE)
    assert more.linear - model(1).work(IMAGE).linear == pytest.approx(N * 1000 * GPU.seconds_per_flop)


def test_one_rank_exchanges_nothing() -> None:
    cost = model(1).price([Assignment(IMAGE, (Share(0, 0, N),))])
    assert cost.makespan == pytest.approx((LINEAR + ATTENTION) / 500e12)
    assert cost.exchanged_bytes == (0,)


def test_a_lone_owner_computes_and_the_others_receive() -> None:
    cost = model(4).price([Assignment(IMAGE, (Share(2, 0, N),))])
    assert cost.compute_seconds == pytest.approx((0, 0, (LINEAR + ATTENTION) / 500e12, 0))
    assert cost.exchanged_bytes == (GATHERED, GATHERED, 0, GATHERED)
    assert cost.gather_seconds == pytest.approx(2e-5 + GATHERED / 400e9)
    assert cost.makespan == pytest.approx((LINEAR + ATTENTION) / 500e12 + cost.gather_seconds)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_an_all_gather_brings_keys_and_values_of_the_other_rows(num_ranks: int) -> None:
    cost = model(num_ranks).price([cut(num_ranks, "all-gather")])
    others = N - N // num_ranks
    received = LAYERS * 2 * D * others * 2
    assert cost.exchanged_bytes == (received + GATHERED * others // N,) * num_ranks
    assert cost.exchange_seconds == pytest.approx((LAYERS * 1e-5 + received / 400e9,) * num_ranks)
    assert cost.compute_seconds == pytest.approx(((LINEAR + ATTENTION) / num_ranks / 500e12,) * num_ranks)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_an_all_to_all_brings_heads_of_all_rows_and_takes_them_back(num_ranks: int) -> None:
    cost = model(num_ranks).price([cut(num_ranks, "all-to-all")])
    m, rows = num_ranks, N // num_ranks
    received = LAYERS * 2 * (3 * D // m * (N - rows) + (D - D // m) * rows)
    assert cost.exchanged_bytes == (received + GATHERED * (m - 1) // m,) * m
    assert cost.exchange_seconds == pytest.approx((2 * LAYERS * 1e-5 + received / 400e9,) * m)


def test_in_an_all_to_all_attention_is_even_whatever_the_rows() -> None:
    shares = (Share(0, 0, 1024), Share(1, 1024, N))
    cost = model(2).price([Assignment(IMAGE, shares, "all-to-all")])
    first, second = cost.compute_seconds
    assert first == pytest.approx((LINEAR / 4 + ATTENTION / 2) / 500e12)
    assert second == pytest.approx((LINEAR * 3 / 4 + ATTENTION / 2) / 500e12)


def test_units_that_are_cut_share_the_rounds_of_a_layer() -> None:
    one = model(2).price([cut(2, "all-gather")])
    two = model(2).price([cut(2, "all-gather")] * 2)
    latency = LAYERS * 1e-5
    assert two.exchange_seconds[0] - latency == pytest.approx(2 * (one.exchange_seconds[0] - latency))


def test_only_ranks_that_share_a_unit_wait_for_each_other() -> None:
    plan = [cut(2, "all-gather"), Assignment(unit((80, 80)), (Share(2, 0, 6400),))]
    cost = model(3).price(plan)
    assert cost.exchange_seconds[2] == 0
    assert cost.makespan == pytest.approx(cost.compute_seconds[2] + cost.gather_seconds)


def test_a_rank_waits_for_the_slowest_it_shares_with() -> None:
    """Rank 0 shares with 1 and 1 with 2: the whole unit on rank 2 holds up all."""
    busy = Assignment(unit((80, 80)), (Share(2, 0, 6400),))
    chain = [cut(2, "all-gather"), cut(2, "all-gather", start=1), busy]
    still = model(3, can_overlap=False).price(chain)
    assert still.makespan == pytest.approx(
        max(still.compute_seconds) + max(still.exchange_seconds) + still.gather_seconds
    )


def test_attention_of_whole_units_hides_the_first_round() -> None:
    plan = [
        cut(2, "all-gather"),
        *(Assignment(unit((60, 60), name), (Share(i, 0, 3600),)) for i, name in [(0, "a"), (1, "b")]),
    ]
    hidden, open_ = model(2).price(plan), model(2, can_overlap=False).price(plan)
    local = LAYERS * 4 * D * 3600**2 / 500e12
    assert local > open_.exchange_seconds[0]
    assert hidden.exchange_seconds == (0, 0)
    assert hidden.makespan == pytest.approx(hidden.compute_seconds[0] + hidden.gather_seconds)
    assert open_.makespan - hidden.makespan == pytest.approx(open_.exchange_seconds[0])


def test_a_plan_with_a_cut_is_one_pass_and_one_without_may_be_several() -> None:
    pass_seconds = CPU.seconds_per_pass
    costs = CostModel(QWEN3_VL, CPU, 2)
    whole = [Assignment(unit((8, 8), str(i)), (Share(0, 0, 64),)) for i in range(3)]
    alone = costs.price(whole).compute_seconds[0]
    assert alone == pytest.approx(costs.alone_seconds([costs.work(one.unit) for one in whole]))
    beside_a_cut = costs.price([*whole, cut(2, "all-gather")]).compute_seconds[0]
    half = costs.work(IMAGE).seconds / 2
    assert beside_a_cut == pytest.approx(alone - 3 * pass_seconds + half + pass_seconds)
    packing = replace(costs, rates=msgspec.structs.replace(CPU, packs_units=True))
    assert packing.price(whole).compute_seconds[0] == pytest.approx(alone - 2 * pass_seconds)


def test_sharded_weights_sum_twice_a_layer() -> None:
    cost = model(4).price([Assignment(IMAGE, ())])
    received = 2 * 3 / 4 * (2 * LAYERS * N * D * 2 + GATHERED)
    assert cost.exchanged_bytes == (received,) * 4
    assert cost.compute_seconds == pytest.approx(((LINEAR + ATTENTION) / 4 / 500e12,) * 4)
    assert cost.exchange_seconds == pytest.approx(((2 * LAYERS + 1) * 1e-5 + received / 400e9,) * 4)

"""Encoding a plan on ranks: failures stay with their unit, and a rank without work takes part."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch

from chiasm.dist.group import SOLO, Group, PendingExchange
from chiasm.models.loader import load_model
from chiasm.schema.facts import EncoderShape, ModelFacts
from chiasm.schema.media import PixelRef, Unit
from chiasm.schema.plan import Assignment, Exchange, Share, VisionPlan
from chiasm.vision.encode import UnitEncoder
from chiasm.vision.stages import Stages
from chiasm.vision.units import Piece
from tests.checkpoints.common import SavedModel
from tests.invariants import CPU, EncodedOnRank, cut_plan, encode_in_steps, encode_on_rank, units_of
from tests.prompts import Prompt, make_prompt
from tests.ranks import RankPool
from tests.rounding import assert_equal_but_for_rounding

# Grids of images and of one clip; the keys of their units are "grid/frame".
PIECES = [2, (1, 4, 4), 1, (1, 24, 6), 1, (3, 2, 4)]
BIG = "(1, 24, 6)/0"
NUM_UNITS = 5


@pytest.fixture(scope="module")
def facts(qwen2_5_vl: SavedModel) -> ModelFacts:
    return load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU).facts


@pytest.fixture(scope="module")
def prompt(facts: ModelFacts) -> Prompt:
    return make_prompt(facts, PIECES)


def whole_plan(prompt: Prompt, size: int) -> VisionPlan:
    """Unit i on rank i, round and round."""
    units = units_of([prompt])
    shares = [Share(index % size, 0, unit.num_patches) for index, unit in enumerate(units)]
    assignments = [Assignment(unit, (share,)) for unit, share in zip(units, shares, strict=True)]
    return VisionPlan(tuple(assignments), "a test", 0.0)


def sharded_plan(prompt: Prompt) -> VisionPlan:
    return VisionPlan(tuple(Assignment(unit, ()) for unit in units_of([prompt])), "a test", 0.0)


def plan_with_cut(facts: ModelFacts, prompt: Prompt, size: int, exchange: Exchange) -> VisionPlan:
    """The big unit over all ranks, the others whole."""
    cuts = [
        [(rank, (rank + 1) / size) for rank in range(size)] if unit.key == BIG else [(index % size, 1.0)]
        for index, unit in enumerate(units_of([prompt]))
    ]
    return cut_plan(facts.encoder, units_of([prompt]), cuts, [exchange] * NUM_UNITS)


@pytest.mark.parametrize("num_steps", [1, 3])
@pytest.mark.parametrize("kind", ["whole on 1", "whole on 2", "whole on 4", "cut on 2", "cut on 3", "sharded on 2"])
def test_a_unit_that_one_rank_cannot_read_fails_alone_and_on_every_rank(
    rank_pool: RankPool, qwen2_5_vl: SavedModel, facts: ModelFacts, prompt: Prompt, kind: str, num_steps: int
) -> None:
    size = int(kind[-1])
    plan = {
        "whole": lambda: whole_plan(prompt, size),
        "cut": lambda: plan_with_cut(facts, prompt, size, "all-gather"),
        "sharded": lambda: sharded_plan(prompt),
    }[kind.split()[0]]()
    run = partial(rank_pool.run, size, encode_on_rank, qwen2_5_vl.folder, [prompt], plan, torch.float32)
    whole = run()[0]
    assert len(whole.features) == NUM_UNITS
    owners = [share.rank for a in plan.assignments if a.unit.key == BIG for share in a.shares] or [1]
    for rank in run([(owners[-1], BIG)], (), num_steps):
        assert rank.failed == {BIG}
        assert rank.features.keys() == whole.features.keys() - {BIG}
        for key, features in rank.features.items():
            assert_equal_but_for_rounding(features, whole.features[key])


@pytest.mark.parametrize("num_steps", [1, 2, 5])
@pytest.mark.parametrize("exchange", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("failing", [(0,), (1,), (0, 1)])
def test_a_rank_that_breaks_in_the_middle_of_a_pass_keeps_nobody_waiting(
    rank_pool: RankPool, qwen2_5_vl: SavedModel, facts: ModelFacts, prompt: Prompt, exchange: Exchange,
    failing: tuple[int, ...], num_steps: int,
) -> None:  # fmt: skip
    """What it shares is lost; whole units are computed all the same. Five steps are one for each stage."""
    plan = plan_with_cut(facts, prompt, 2, exchange)
    for rank in rank_pool.run(
        2, encode_on_rank, qwen2_5_vl.folder, [prompt], plan, torch.float32, (), failing, num_steps, timeout=90
    ):
        assert rank.failed == {BIG}
        assert len(rank.features) == NUM_UNITS - 1


def _without_room(group: Group, failing_call: int) -> None:
    """Have the ``failing_call``-th exchange find no memory to receive into."""
    start, calls = group.start_all_to_all, count(1)

    def fails_once(outgoing: torch.Tensor, sending: Sequence[int], receiving: Sequence[int]) -> PendingExchange:
        if next(calls) == failing_call:
            raise RuntimeError("out of memory")
        return start(outgoing, sending, receiving)

    group.start_all_to_all = fails_once  # type: ignore[method-assign]


def _encode_without_room(
    group: Group, folder: Path, prompt: Prompt, plan: VisionPlan, failing_call: int, num_steps: int
) -> EncodedOnRank:
    if group.rank == 1:
        _without_room(group, failing_call)
    return encode_on_rank(group, folder, [prompt], plan, torch.float32, failing=[-1], num_steps=num_steps)


@pytest.mark.parametrize("num_steps", [1, 5])
@pytest.mark.parametrize("failing_call", [1, 2, 3, 4])
def test_no_memory_to_receive_into_keeps_nobody_waiting(
    rank_pool: RankPool, qwen2_5_vl: SavedModel, facts: ModelFacts, prompt: Prompt, failing_call: int, num_steps: int
) -> None:
    """In any of the two rounds of two layers."""
    plan = plan_with_cut(facts, prompt, 2, "all-to-all")
    run = partial(rank_pool.run, 2, _encode_without_room, qwen2_5_vl.folder, prompt, plan, failing_call, num_steps)
    for rank in run(timeout=90):
        assert rank.failed == {BIG}
        assert len(rank.features) == NUM_UNITS - 1


@pytest.mark.parametrize("exchange", ["all-gather", "all-to-all"])
def test_a_rank_without_rows_takes_part(
    rank_pool: RankPool, qwen2_5_vl: SavedModel, facts: ModelFacts, exchange: Exchange
) -> None:
    lone = make_prompt(facts, [1, (1, 24, 6)])
    plan = cut_plan(facts.encoder, units_of([lone]), [[(0, 0.5), (2, 1.0)]], [exchange])
    ranks = rank_pool.run(4, encode_on_rank, qwen2_5_vl.folder, [lone], plan, torch.float32)
    assert [bool(rank.rows_read) for rank in ranks] == [True, False, True, False]
    assert all(rank.features.keys() == {BIG} for rank in ranks)


def test_more_ranks_than_units(rank_pool: RankPool, qwen2_5_vl: SavedModel, prompt: Prompt) -> None:
    plan = whole_plan(prompt, 8)
    ranks = rank_pool.run(8, encode_on_rank, qwen2_5_vl.folder, [prompt], plan, torch.float32)
    assert sum(not rank.rows_read for rank in ranks) == 3, "five units on eight ranks"
    assert all(len(rank.features) == NUM_UNITS for rank in ranks)


@pytest.mark.parametrize("kind", ["whole", "cut", "sharded"])
def test_all_units_failing_is_no_hang(
    rank_pool: RankPool, qwen2_5_vl: SavedModel, facts: ModelFacts, kind: str
) -> None:
    lone = make_prompt(facts, [1, (1, 24, 6)])
    [unit] = units_of([lone])
    cut = cut_plan(facts.encoder, [unit], [[(0, 0.5), (1, 1.0)]], ["all-to-all"])
    plan = {"whole": whole_plan(lone, 2), "cut": cut, "sharded": sharded_plan(lone)}[kind]
    gone = [(0, unit.key)]
    for rank in rank_pool.run(2, encode_on_rank, qwen2_5_vl.folder, [lone], plan, torch.float32, gone):
        assert (rank.features, rank.failed) == ({}, {unit.key})


_SHAPE = EncoderShape(3, 1, 2, 1, (0,), num_heads=1, feature_size=3, merge_size=2)


def _on_one_rank(units: Sequence[Unit]) -> VisionPlan:
    shares = [Share(0, 0, unit.num_patches) for unit in units]
    return VisionPlan(tuple(Assignment(u, (s,)) for u, s in zip(units, shares, strict=True)), "a test", 0.0)


def _fragile_encoder(pixels: torch.Tensor, pieces: Sequence[Piece], _: object) -> Stages:
    """Means of merge blocks; it can't take more than one unit at a time, nor the grid 2x6."""
    yield
    if len(pieces) > 1 or pieces[0].grid == (2, 6):
        raise RuntimeError("out of memory")
    return pixels.float().view(-1, 4, pixels.shape[1]).mean(1)


@pytest.mark.parametrize("num_steps", [1, 2])
def test_when_packing_fails_only_the_bad_unit_is_lost(num_steps: int) -> None:
    rows = np.arange(4 * 8 * 3, dtype=np.uint8).reshape(-1, 3)
    units = [
        Unit(name, grid, grid[0] * grid[1] // 4, PixelRef("", 0, grid[0] * grid[1], 3))
        for name, grid in {"a": (2, 2), "bad": (2, 6), "b": (2, 8)}.items()
    ]
    encoder = UnitEncoder(
        _fragile_encoder, _SHAPE, 3, SOLO, lambda ref: rows[: ref.num_rows], CPU, torch.float32, packs_units=True
    )
    encoded = encode_in_steps(encoder, _on_one_rank(units), num_steps)
    assert encoded.failed == {"bad"}
    assert {key: tuple(features.shape) for key, features in encoded.features.items()} == {"a": (1, 3), "b": (4, 3)}


def test_packed_units_are_split_into_storage_of_their_own() -> None:
    rows = np.arange(96, dtype=np.uint8).reshape(-1, 3)
    units = [Unit(name, (2, 4), 2, PixelRef("", first, 8, 3)) for name, first in (("a", 0), ("b", 8))]

    def means(pixels: torch.Tensor, _: Sequence[Piece], __: object) -> Stages:
        yield
        return pixels.float().view(-1, 4, 3).mean(1)

    def read(ref: PixelRef) -> npt.NDArray[np.uint8]:
        return rows[ref.first_row : ref.first_row + ref.num_rows]

    encoder = UnitEncoder(means, _SHAPE, 3, SOLO, read, CPU, torch.float32, packs_units=True)
    features = encode_in_steps(encoder, _on_one_rank(units), 1).features
    assert features["b"].untyped_storage().nbytes() == features["b"].nbytes
    assert_equal_but_for_rounding(features["b"], torch.from_numpy(rows[8:16]).float().view(2, 4, 3).mean(1))

"""Encoding a plan on ranks: failures stay with their unit, and a rank without work takes part."""

from __future__ import annotations

import pytest
import torch

from chiasm.models.loader import load_model
from tests.checkpoints import SavedModel
from tests.invariants import CPU, EncodedOnRank, encode_on_rank
from tests.prompts import Prompt, make_prompt
from tests.ranks import RankPool

# Grids of images and of one clip; the keys of their units are "grid/frame".
PIECES = [2, (1, 4, 4), 1, (1, 8, 6), 1, (3, 2, 4)]
BIG = "(1, 8, 6)/0"


@pytest.fixture(scope="module")
def prompt(qwen2_5_vl: SavedModel) -> Prompt:
    facts = load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU).facts
    return make_prompt(facts, PIECES)


def run(
    pool: RankPool, model: SavedModel, prompt: Prompt, size: int, mode: str, unreadable: str = ""
) -> list[EncodedOnRank]:
    return pool.run(size, encode_on_rank, model.folder, [prompt], mode, torch.float32, unreadable)


@pytest.mark.parametrize(("size", "mode"), [(1, "data"), (2, "auto"), (4, "data"), (2, "weights")])
def test_a_unit_that_one_rank_cannot_read_fails_alone_and_on_every_rank(
    rank_pool: RankPool, qwen2_5_vl: SavedModel, prompt: Prompt, size: int, mode: str
) -> None:
    whole = run(rank_pool, qwen2_5_vl, prompt, size, mode)[0]
    for rank in run(rank_pool, qwen2_5_vl, prompt, size, mode, unreadable=BIG):
        assert rank.failed == {BIG}
        assert rank.features.keys() == whole.features.keys() - {BIG}
        for key, features in rank.features.items():
            torch.testing.assert_close(features, whole.features[key], rtol=0, atol=1e-6)


def test_more_ranks_than_units(rank_pool: RankPool, qwen2_5_vl: SavedModel, prompt: Prompt) -> None:
    ranks = run(rank_pool, qwen2_5_vl, prompt, 8, "data")
    assert sum(not rank.keys_read for rank in ranks) == 3, "five units on eight ranks"
    assert all(len(rank.features) == 5 for rank in ranks)


def test_all_units_failing_is_no_hang(rank_pool: RankPool, qwen2_5_vl: SavedModel, prompt: Prompt) -> None:
    facts = load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU).facts
    lone = make_prompt(facts, [1, (1, 8, 6)])
    for mode in ("data", "weights"):
        for rank in run(rank_pool, qwen2_5_vl, lone, 2, mode, unreadable=BIG):
            assert (rank.features, rank.failed) == ({}, {BIG})

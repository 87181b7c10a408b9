"""Encoding a plan on ranks: failures stay with their unit, and a rank without work takes part."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
import torch

from chiasm.dist.group import SOLO
from chiasm.models.loader import load_model
from chiasm.schema.media import PixelRef, Unit
from chiasm.vision.encode import UnitEncoder
from chiasm.vision.plan import plan_vision
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


def _fragile_encoder(pixels: torch.Tensor, grids: Sequence[tuple[int, int]]) -> torch.Tensor:
    """Means of merge blocks; it can't take more than one unit at a time, nor the grid 2x6."""
    if len(grids) > 1 or (2, 6) in grids:
        raise RuntimeError("out of memory")
    return pixels.float().view(-1, 4, pixels.shape[1]).mean(1)


def test_when_packing_fails_only_the_bad_unit_is_lost() -> None:
    rows = np.arange(4 * 8 * 3, dtype=np.uint8).reshape(-1, 3)
    units = [
        Unit(name, grid, grid[0] * grid[1] // 4, PixelRef("", 0, grid[0] * grid[1], 3))
        for name, grid in {"a": (2, 2), "bad": (2, 6), "b": (2, 8)}.items()
    ]
    encoder = UnitEncoder(
        _fragile_encoder, 3, SOLO, lambda ref: rows[: ref.num_rows], CPU, torch.float32, packs_units=True
    )
    encoded = encoder.encode(plan_vision(units, num_ranks=1, mode="data", cost=lambda _: 1.0))
    assert encoded.failed == {"bad"}
    assert {key: tuple(features.shape) for key, features in encoded.features.items()} == {"a": (1, 3), "b": (4, 3)}


def test_packed_units_are_split_into_storage_of_their_own() -> None:
    rows = np.arange(96, dtype=np.uint8).reshape(-1, 3)
    units = [Unit(name, (2, 4), 2, PixelRef("", first, 8, 3)) for name, first in (("a", 0), ("b", 8))]

    def means(pixels: torch.Tensor, _: Sequence[tuple[int, int]]) -> torch.Tensor:
        return pixels.float().view(-1, 4, 3).mean(1)

    def read(ref: PixelRef) -> npt.NDArray[np.uint8]:
        return rows[ref.first_row : ref.first_row + ref.num_rows]

    encoder = UnitEncoder(means, 3, SOLO, read, CPU, torch.float32, packs_units=True)
    features = encoder.encode(plan_vision(units, num_ranks=1, mode="data", cost=lambda _: 1.0)).features
    assert features["b"].untyped_storage().nbytes() == features["b"].nbytes
    torch.testing.assert_close(features["b"], torch.from_numpy(rows[8:16]).float().view(2, 4, 3).mean(1))

"""Units that ranks share by rows, over random mixes of images and clips, cuts and exchanges."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chiasm.models.loader import load_model
from chiasm.schema.plan import Exchange
from tests import invariants
from tests.checkpoints.common import SavedModel
from tests.invariants import CPU, Family
from tests.prompts import make_prompt
from tests.ranks import RankPool


@pytest.fixture(scope="module")
def family(qwen2_5_vl: SavedModel) -> Family:
    loaded = load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU)

    def unused(*_: object) -> torch.Tensor:
        raise AssertionError("not compared with Hugging Face here")

    return Family(qwen2_5_vl.folder, loaded.facts, loaded.model, unused, unused)


class Mix(NamedTuple):
    """Items as (frames, rows, columns), and for each unit its cut and exchange."""

    size: int
    items: list[tuple[int, int, int]]
    cuts: list[list[tuple[int, float]]]
    exchanges: list[Exchange]


@st.composite
def mixes(draw: st.DrawFn) -> Mix:
    size = draw(st.sampled_from((1, 2, 3, 4, 8)))
    sides = st.integers(1, 9).map(lambda blocks: 2 * blocks)
    grids = st.tuples(st.sampled_from((1, 1, 2, 3, 5)), sides, sides)
    items = draw(st.lists(grids, max_size=4, unique=True))  # a unit's key is its grid
    num_units = sum(frames for frames, _, _ in items)
    cuts = []
    for _ in range(num_units):
        ranks = draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=size, unique=True))
        inner = draw(st.lists(st.floats(0, 1), min_size=len(ranks) - 1, max_size=len(ranks) - 1))
        cuts.append(list(zip(ranks, [*sorted(inner), 1.0], strict=True)))
    kinds = st.sampled_from(("all-gather", "all-to-all"))
    return Mix(size, items, cuts, draw(st.lists(kinds, min_size=num_units, max_size=num_units)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(mix=mixes())
def test_any_cut_of_any_mix_equals_one_rank(
    family: Family, rank_pool: RankPool, dtype: torch.dtype, mix: Mix
) -> None:
    prompt = make_prompt(family.facts, [1, *mix.items, 1])
    invariants.row_cuts_equal_one_rank(family, rank_pool, mix.size, [prompt], mix.cuts, mix.exchanges, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("exchange", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("size", [2, 4])
def test_one_image_over_all_ranks(
    family: Family, rank_pool: RankPool, size: int, exchange: Exchange, dtype: torch.dtype
) -> None:
    prompt = make_prompt(family.facts, [1, (1, 26, 38), 1])
    cut = [(rank, (rank + 1) / size) for rank in range(size)]
    invariants.row_cuts_equal_one_rank(family, rank_pool, size, [prompt], [cut], [exchange], dtype)

"""Towers, links and units to plan with."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from hypothesis import strategies as st

from chiasm.bench.machines import QWEN3_VL_8B, gpu_rates
from chiasm.schema.facts import EncoderRates, EncoderShape
from chiasm.schema.media import PixelRef, Unit

QWEN3_VL = msgspec.structs.replace(QWEN3_VL_8B, outer_flops=0)
QWEN2_5_VL = EncoderShape(
    hidden_size=1280,
    intermediate_size=3420,
    mlp_matrices=3,
    num_layers=32,
    full_attention_layers=(7, 15, 23, 31),
    num_heads=16,
    feature_size=3584,
    merge_size=2,
    window_blocks=4,
)
GPU = gpu_rates(tflops=500, link_gbs=400, link_us=10)
CPU = EncoderRates(
    seconds_per_pass=0.01,
    seconds_per_flop=1.5e-11,
    seconds_per_attention_flop=3e-11,
    seconds_per_exchange=1e-3,
    seconds_per_byte=1e-9,
    bytes_per_element=4,
    can_overlap=False,
    packs_units=False,
)

Grid = tuple[int, int]


def unit(grid: Grid, name: str = "") -> Unit:
    rows = grid[0] * grid[1]
    return Unit(name or str(grid), grid, rows // 4, PixelRef("", 0, rows, 1))


def units_of(grids: Sequence[Grid]) -> list[Unit]:
    return [unit(grid, f"u{index}") for index, grid in enumerate(grids)]


def grids(longest_side: int = 70) -> st.SearchStrategy[Grid]:
    """Even sides."""
    side = st.integers(1, longest_side // 2).map(lambda half: 2 * half)
    return st.tuples(side, side)


def mixes(min_size: int = 0, max_size: int = 40) -> st.SearchStrategy[list[Grid]]:
    """Units of images and videos, in order: a video is a run of one grid."""
    item = st.tuples(st.integers(1, 9), grids()).map(lambda pair: [pair[1]] * pair[0])
    flat = st.lists(item, max_size=max_size).map(lambda items: [grid for each in items for grid in each][:max_size])
    return flat.filter(lambda found: len(found) >= min_size)

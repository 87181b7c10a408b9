"""Operations of a Qwen2.5-VL tower and bytes of its language model, counted from a checkpoint's own files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

from safetensors import safe_open

_FLOAT32 = 4


def tower_flops(folder: Path, grids: Iterable[Sequence[int]]) -> int:
    """Multiplications and additions of matrix products for patch grids (time, rows, columns).

    Counted: the patch embedding; of each layer the projections of attention, the MLP's three products, and scores and
    sums over pairs of a slice, or of a window where the layer has windows; the merger. Left out: norms, activations,
    softmax, rotations.
    """
    config = json.loads((folder / "config.json").read_text())["vision_config"]
    return sum(_item_flops(config, *grid) for grid in grids)


def _item_flops(config: dict[str, Any], frames: int, rows: int, columns: int) -> int:
    width, depth = config["hidden_size"], config["depth"]
    patches = frames * rows * columns
    embedding = 2 * patches * 3 * config["temporal_patch_size"] * config["patch_size"] ** 2 * width
    dense = 2 * patches * depth * (4 * width**2 + 3 * width * config["intermediate_size"])
    side = config["window_size"] // config["patch_size"]
    windows = sum((a * b) ** 2 for a in _pieces(rows, side) for b in _pieces(columns, side))
    num_full = len(config["fullatt_block_indexes"])
    pairs = frames * (num_full * (rows * columns) ** 2 + (depth - num_full) * windows)
    block = config["spatial_merge_size"] ** 2
    merged = width * block
    merger = 2 * (patches // block) * merged * (merged + config["out_hidden_size"])
    return int(embedding + dense + 4 * pairs * width + merger)


def _pieces(length: int, side: int) -> list[int]:
    whole, rest = divmod(length, side)
    return [side] * whole + [rest] * (rest > 0)


def bytes_of_decode_step(folder: Path) -> int:
    """Bytes of float32 weights that one step of decoding reads: all but the tower's, and the embedding if untied."""
    is_tied = json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  # it is no mapping
                is_read = "visual" not in name and (is_tied or "embed_tokens" not in name)
                total += prod(tensors.get_slice(name).get_shape()) if is_read else 0
    return total * _FLOAT32

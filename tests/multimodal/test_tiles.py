"""Pictures cut into tiles: equality with Hugging Face's processor, units, keys, limits."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import msgspec
import numpy as np
import pytest

from chiasm.errors import UserError
from chiasm.multimodal.bounds import bounded_spec
from chiasm.multimodal.canvas import fit_to_canvas
from chiasm.multimodal.decode import decode_image
from chiasm.multimodal.pixels import read_rows
from chiasm.multimodal.processing import process_image
from chiasm.schema.media import ProcessedItem, TileProcessorSpec
from tests.multimodal.pictures import CANVAS_SIZES, CANVASES, FILES, TILE_CASES, TileCase, make_picture, packaged_file

GOLDENS = json.loads(Path(__file__).with_name("tile_goldens.json").read_text(encoding="utf-8"))
LLAMA4 = TileProcessorSpec(patch_size=14, merge_size=2, temporal_patch_size=1, tile_size=336, max_tiles=16)
SMALL = msgspec.structs.replace(LLAMA4, tile_size=84, max_tiles=6)


def tiles_of(item: ProcessedItem, spec: TileProcessorSpec) -> np.ndarray:
    """uint8 [tiles, 3, side, side] from the rows of patches."""
    side, blocks = spec.patch_size, spec.tile_size // spec.patch_size // 2
    rows = np.concatenate([read_rows(unit.pixels) for unit in item.units])
    patches = rows.reshape(len(item.units), blocks, blocks, 2, 2, 3, side, side)
    return patches.transpose(0, 5, 1, 3, 6, 2, 4, 7).reshape(-1, 3, spec.tile_size, spec.tile_size)


def outcome(item: ProcessedItem, spec: TileProcessorSpec) -> dict[str, object]:
    tiles = np.ascontiguousarray(tiles_of(item, spec))
    return {"canvas": list(item.canvas), "sha256": hashlib.sha256(tiles.tobytes()).hexdigest()}


@pytest.mark.parametrize("case", TILE_CASES, ids=lambda case: case.name)
def test_equals_hugging_face_to_the_last_bit(case: TileCase, tmp_path: Path) -> None:
    spec = TileProcessorSpec(14, 2, 1, case.tile_size, case.max_tiles, case.fills_canvas)
    item = process_image(make_picture(case.kind, case.height, case.width), spec, tmp_path)
    assert outcome(item, spec) == GOLDENS["pictures"][case.name]
    assert Path(item.units[0].pixels.path).stat().st_size <= spec.max_bytes


@pytest.mark.parametrize("name", FILES)
def test_equals_hugging_face_on_photographs(name: str, tmp_path: Path) -> None:
    image = decode_image(packaged_file(name).read_bytes(), max_pixels=10**7)
    assert outcome(process_image(image, LLAMA4, tmp_path), LLAMA4) == GOLDENS["files"][name]


@pytest.mark.parametrize("canvas", CANVASES, ids=str)
def test_canvases_equal_hugging_face(canvas: tuple[int, int, bool]) -> None:
    spec = TileProcessorSpec(14, 2, 1, *canvas)
    fits = [fit_to_canvas(*size, spec) for size in CANVAS_SIZES]
    assert [[*tiles, *size] for tiles, size in fits] == GOLDENS["fitted"][" ".join(map(str, canvas))]


def test_each_tile_is_a_unit_and_the_overview_is_the_last(tmp_path: Path) -> None:
    picture = make_picture("noise", 84, 252)
    item = process_image(picture, SMALL, tmp_path)
    assert item.canvas == (1, 3)
    assert [unit.grid for unit in item.units] == [(6, 6)] * 4
    assert item.num_tokens == 4 * 9 == 4 * SMALL.max_unit_tokens
    tiles = tiles_of(item, SMALL)
    for index in range(3):
        assert np.array_equal(tiles[index], picture[:, 84 * index : 84 * index + 84].transpose(2, 0, 1))
    assert len({unit.key for unit in item.units}) == 4


def test_a_tile_has_the_key_of_the_same_picture_alone(tmp_path: Path) -> None:
    """So that a cached tile serves every picture that has it, blank ones above all."""
    picture = make_picture("noise", 84, 252)
    item = process_image(picture, SMALL, tmp_path)
    alone = process_image(np.ascontiguousarray(picture[:, 84:168]), SMALL, tmp_path)
    assert alone.units[0].key == item.units[1].key
    assert alone.canvas == (1, 1)


def test_limits_on_the_area_are_refused_by_name() -> None:
    assert bounded_spec(SMALL, {}, {}) == SMALL
    for server, request in (({"max_pixels": 9}, {}), ({}, {"min_pixels": 9})):
        with pytest.raises(UserError, match=r"mm_processor_kwargs\.m\w+_pixels must be left out: .* got 9\.$"):
            bounded_spec(SMALL, server, request)

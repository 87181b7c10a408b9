"""From pixels to rows: equality with Hugging Face's processor, keys, files of rows."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from pathlib import Path

import hypothesis
import hypothesis.strategies as st
import msgspec
import numpy as np
import pytest
import torch

from chiasm.errors import OverloadedError, UserError
from chiasm.multimodal.bounds import bounded_spec
from chiasm.multimodal.decode import decode_image
from chiasm.multimodal.hashing import unit_key
from chiasm.multimodal.patches import cut_into_patches
from chiasm.multimodal.pixels import PixelsLostError, discard_pixels, read_rows
from chiasm.multimodal.processing import process_image
from chiasm.multimodal.sizes import resized_size, size_on_canvas, tile_layouts
from chiasm.schema.media import CanvasProcessorSpec, CanvasShape, PatchProcessorSpec
from tests.multimodal.pictures import CANVAS_CASES, CASES, FILES, GLM_CASES, make_picture, packaged_file
from tests.multimodal.specs import QWEN

GOLDENS = json.loads(Path(__file__).with_name("goldens.json").read_text(encoding="utf-8"))


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def outcome(item):
    (unit,) = item.units
    rows = read_rows(unit.pixels)
    assert unit.num_tokens == item.num_tokens == unit.num_patches // 4
    assert len(rows) == unit.num_patches
    return {"grid": list(unit.grid), "sha256": hashlib.sha256(rows.tobytes()).hexdigest()}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_equals_hugging_face_to_the_last_bit(case, tmp_path):
    spec = PatchProcessorSpec(case.patch_size, 2, 2, case.min_pixels, case.max_pixels)
    item = process_image(make_picture(case.kind, case.height, case.width), spec, tmp_path)
    assert outcome(item) == GOLDENS[case.name]


@pytest.mark.parametrize("case", GLM_CASES, ids=lambda case: case.name)
def test_equals_hugging_face_with_the_limits_of_glm(case, tmp_path):
    spec = PatchProcessorSpec(14, 2, 2, case.min_pixels // 2, case.max_pixels // 2, enlarges_thin=True)
    item = process_image(make_picture(case.kind, case.height, case.width), spec, tmp_path)
    assert outcome(item) == GOLDENS[f"glm4v {case.name}"]


@pytest.mark.parametrize("name", FILES)
def test_equals_hugging_face_on_photographs(name, tmp_path):
    image = decode_image(packaged_file(name).read_bytes(), max_pixels=10**7)
    assert outcome(process_image(image, QWEN, tmp_path)) == GOLDENS[name]


def canvas_outcome(image, tile, folder):
    spec = CanvasProcessorSpec(14, 1, 1, CanvasShape(tile // 14, 4))
    item = process_image(image, spec, folder)
    (unit,) = item.units
    assert item.num_tokens == 1
    assert unit.num_tokens == unit.num_rows == spec.canvas.unit_rows
    layout = unit.grid[0] // spec.canvas.side, unit.grid[1] // spec.canvas.side
    num_tiles = layout[0] * layout[1]
    assert unit.num_padding == unit.num_rows - num_tiles * spec.canvas.seen_rows
    rows = read_rows(unit.pixels)
    tiles = rows.reshape(num_tiles, tile // 14, tile // 14, 3, 14, 14).transpose(0, 3, 1, 4, 2, 5)
    return {
        "layout": 1 + tile_layouts(4).index(layout),
        "num_tiles": num_tiles,
        "sha256": hashlib.sha256(tiles.tobytes()).hexdigest(),
    }


@pytest.mark.parametrize(("kind", "height", "width", "tile"), CANVAS_CASES)
def test_tiles_equal_hugging_face_to_the_last_bit(kind, height, width, tile, tmp_path):
    golden = GOLDENS[f"mllama {kind} {height}x{width} by {tile}"]
    assert canvas_outcome(make_picture(kind, height, width), tile, tmp_path) == golden


@pytest.mark.parametrize("name", FILES)
def test_tiles_equal_hugging_face_on_photographs(name, tmp_path):
    image = decode_image(packaged_file(name).read_bytes(), max_pixels=10**7)
    assert canvas_outcome(image, 448, tmp_path) == GOLDENS[f"mllama {name}"]


@hypothesis.settings(database=None)
@hypothesis.given(
    height=st.integers(1, 5000),
    width=st.integers(1, 5000),
    tile=st.sampled_from((56, 448, 560)),
    num_tiles=st.integers(1, 6),
)
def test_canvases_equal_hugging_face(height, width, tile, num_tiles):
    from transformers.models.mllama.image_processing_pil_mllama import (
        get_image_size_fit_to_canvas,
        get_optimal_tiled_canvas,
    )

    spec = CanvasProcessorSpec(14, 1, 1, CanvasShape(tile // 14, num_tiles))
    canvas = get_optimal_tiled_canvas(height, width, num_tiles, tile)
    picture = get_image_size_fit_to_canvas(height, width, *canvas, tile)
    (rows, columns), size = size_on_canvas(height, width, spec)
    assert (rows * tile, columns * tile) == canvas
    assert size == picture


def test_a_key_tells_layouts_of_tiles_apart():
    rows = np.zeros((2 * 9, 588), np.uint8)
    spec = CanvasProcessorSpec(14, 1, 1, CanvasShape(3, 4))
    assert unit_key(rows, (3, 6), spec) != unit_key(rows, (6, 3), spec)


def test_pictures_of_tiles_have_no_limits_of_their_area():
    spec = CanvasProcessorSpec(14, 1, 1, CanvasShape(3, 4))
    assert bounded_spec(spec, {}, {}) == spec
    with pytest.raises(UserError, match=r"mm_processor_kwargs\.max_pixels"):
        bounded_spec(spec, {}, {"max_pixels": 100})
    with pytest.raises(UserError, match=r"mm_processor_kwargs\.min_pixels"):
        bounded_spec(spec, {"min_pixels": 100}, {})


@hypothesis.settings(database=None)
@hypothesis.given(
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    limits=st.tuples(st.integers(1, 10**6), st.integers(1, 10**7)).map(sorted),
    patch_size=st.sampled_from((14, 16)),
)
def test_sizes_equal_hugging_face(height, width, limits, patch_size):
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    spec = PatchProcessorSpec(patch_size, 2, 2, *limits)
    try:
        expected = smart_resize(height, width, patch_size * 2, *limits)
    except ValueError:
        expected = None
    if expected is None:
        with pytest.raises(UserError, match="at most 200 times"):
            resized_size(height, width, spec)
    else:
        assert resized_size(height, width, spec) == expected
        assert expected[0] * expected[1] <= spec.max_tokens * (2 * patch_size) ** 2


@hypothesis.settings(database=None)
@hypothesis.given(
    height=st.integers(1, 3000),
    width=st.integers(1, 3000),
    limits=st.tuples(st.integers(1, 10**6), st.integers(1, 10**7)).map(sorted),
)
def test_sizes_equal_hugging_face_with_the_limits_of_glm(height, width, limits):
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize

    spec = PatchProcessorSpec(14, 2, 2, *limits, enlarges_thin=True)
    try:
        expected = smart_resize(2, height, width, min_pixels=2 * limits[0], max_pixels=2 * limits[1])
    except ValueError:
        with pytest.raises(UserError, match="at most 200 times"):
            resized_size(height, width, spec)
    else:
        assert resized_size(height, width, spec) == expected
        assert expected[0] * expected[1] <= spec.max_tokens * 28**2


def test_too_thin_a_picture_is_refused_with_its_size():
    with pytest.raises(UserError, match=r"2000 x 3 pixels; one side may be at most 200 times") as caught:
        resized_size(3, 2000, QWEN, param="messages[0]")
    assert caught.value.param == "messages[0]"
    assert caught.value.status == 400


def test_a_row_holds_channel_frame_y_x_of_one_patch():
    planes = make_picture("noise", 56, 84).transpose(2, 0, 1)
    rows = cut_into_patches([planes], QWEN).reshape(-1, 3, 2, 14, 14)
    assert len(rows) == 4 * 6
    # The second merge block: its first row of patches, then its second.
    for row, (y, x) in zip(rows[4:8], ((0, 2), (0, 3), (1, 2), (1, 3)), strict=True):
        patch = planes[:, 14 * y : 14 * y + 14, 14 * x : 14 * x + 14]
        assert (row[:, 0] == patch).all()
        assert (row[:, 1] == patch).all()


def test_the_file_is_private_unguessable_and_goes_away(tmp_path):
    picture = make_picture("noise", 56, 56)
    first, second = (process_image(picture, QWEN, tmp_path) for _ in range(2))
    paths = [Path(item.units[0].pixels.path) for item in (first, second)]
    assert paths[0] != paths[1]
    assert all(path.stat().st_mode & 0o777 == 0o600 and len(path.stem) == 32 for path in paths)
    rows = read_rows(first.units[0].pixels)
    expected = rows.copy()
    for item in (first, first, second):
        discard_pixels(item)
    assert list(tmp_path.iterdir()) == []
    assert (rows == expected).all()  # a mapping outlives its file


def test_only_the_wanted_rows_are_read_and_may_be_wrapped_by_torch(tmp_path):
    ref = process_image(make_picture("noise", 112, 112), QWEN, tmp_path).units[0].pixels
    everything = read_rows(ref)
    part = msgspec.structs.replace(ref, first_row=20, num_rows=9)
    rows = read_rows(part)
    assert (rows == everything[20:29]).all()
    assert rows.shape == (9, QWEN.row_bytes)
    torch.from_numpy(rows).zero_()  # no warning about read-only memory, and the file stays as it is
    assert (read_rows(ref) == everything).all()


def test_lost_or_short_files_are_a_clear_error(tmp_path):
    ref = process_image(make_picture("noise", 56, 56), QWEN, tmp_path).units[0].pixels
    with pytest.raises(PixelsLostError, match="rows 10 to 20"):
        read_rows(msgspec.structs.replace(ref, first_row=10, num_rows=10))
    Path(ref.path).unlink()
    with pytest.raises(PixelsLostError):
        read_rows(ref)


def test_a_full_folder_is_overload_and_leaves_nothing(tmp_path, monkeypatch):
    def write(_descriptor, _data):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(OverloadedError, match="no space"):
        process_image(make_picture("noise", 56, 56), QWEN, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_keys_tell_pictures_apart_by_all_that_features_depend_on():
    rows = np.zeros((24, QWEN.row_bytes), np.uint8)
    other = rows.copy()
    other[-1, -1] = 1
    bounded = msgspec.structs.replace(QWEN, min_pixels=1, max_pixels=999)
    reshaped = PatchProcessorSpec(14, 1, 2, 1, 2)
    key = unit_key(rows, (4, 6), QWEN)
    assert len(key) == 64
    assert key == unit_key(rows.copy(), (4, 6), bounded)  # limits do not change what the pixels mean
    others = {unit_key(rows, (6, 4), QWEN), unit_key(other, (4, 6), QWEN), unit_key(rows, (4, 6), reshaped)}
    assert len(others | {key}) == 4


def test_swapped_sides_and_palettes_give_other_keys(tmp_path):
    """Threat: cache hash collision (CVE-2025-46722, GHSA-c65p-x677-fgj6)."""
    wide = np.full((30, 100, 3), 7, np.uint8)
    tall = wide.reshape(100, 30, 3)
    keys = {process_image(image, QWEN, tmp_path).units[0].key for image in (wide, tall, wide + 1)}
    assert len(keys) == 3


def test_the_same_rows_of_one_frame_have_one_key_in_any_clip_and_as_a_picture(tmp_path):
    """A lone image is a frame shown twice, and so is a still moment of a video: the tower reads the same rows."""
    items = [process_image(make_picture("noise", 56, 84), QWEN, tmp_path) for _ in range(2)]
    assert items[0].units[0].key == items[1].units[0].key
    assert items[0].units[0].pixels.path != items[1].units[0].pixels.path


class TestBounds:
    def test_the_server_replaces_and_a_request_narrows(self):
        spec = bounded_spec(QWEN, {"max_pixels": 500_000}, {"min_pixels": 10_000, "max_pixels": 20_000})
        assert (spec.min_pixels, spec.max_pixels) == (10_000, 20_000)
        assert bounded_spec(QWEN, {"max_pixels": 2_000_000}, {}).max_pixels == 2_000_000
        assert bounded_spec(QWEN, {}, {}) == QWEN

    @pytest.mark.parametrize(
        ("server", "request_kwargs", "message"),
        [
            ({"max_pixels": 500_000}, {"max_pixels": 500_001}, r"max_pixels must be in \[3136, 500000\].*got 500001"),
            ({"min_pixels": 5_000}, {"min_pixels": 4_999}, r"min_pixels must be in \[5000, 1003520\].*got 4999"),
            ({}, {"max_pixels": 1}, r"max_pixels must be in \[3136, 1003520\]"),
            ({}, {"fps": 10**9}, "unknown key 'fps'"),
            ({}, {"max_pixels": "9"}, "max_pixels must be a positive whole number"),
            ({}, {"max_pixels": True}, "max_pixels must be a positive whole number"),
            ({}, {"max_pixels": 1e5}, "max_pixels must be a positive whole number"),
            ({}, {"min_pixels": 9_000, "max_pixels": 8_000}, "min_pixels=9000 must not be above"),
            ({"max_pixels": 3_000}, {}, "min_pixels=3136 larger than max_pixels=3000"),
        ],
    )
    def test_refusals_name_key_value_and_bound(self, server, request_kwargs, message):
        with pytest.raises(UserError, match=message) as caught:
            bounded_spec(QWEN, server, request_kwargs)
        assert caught.value.param.startswith("mm_processor_kwargs")

"""Odd pictures through every kind of processor: an item that fits its spec, or a refusal of the picture."""

from __future__ import annotations

import contextlib
import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from chiasm.errors import UserError
from chiasm.multimodal.decode import decode_image
from chiasm.multimodal.pixels import read_rows
from chiasm.multimodal.processing import process_image
from chiasm.schema.media import (
    CanvasProcessorSpec,
    CanvasShape,
    ImageProcessorSpec,
    PatchProcessorSpec,
    TileProcessorSpec,
)
from tests.multimodal.encoded import encode, noise

# As the published checkpoints of each family have them.
SPECS: dict[str, ImageProcessorSpec] = {
    "qwen2_vl and qwen2_5_vl": PatchProcessorSpec(14, 2, 2, 3136, 12845056),
    "qwen3_vl": PatchProcessorSpec(16, 2, 2, 65536, 16777216),
    "glm4v": PatchProcessorSpec(14, 2, 2, 12544 // 2, 9633792 // 2, enlarges_thin=True),
    "llama4": TileProcessorSpec(14, 2, 1, 336, 16),
    "mllama": CanvasProcessorSpec(14, 1, 1, CanvasShape(560 // 14, 4)),
}
SIZES = (
    (1, 1),
    (2, 1),
    (1, 3),
    (3, 3),
    (27, 28),
    (1, 200),
    (201, 1),
    (1, 10_000),
    (10_000, 1),
    (3, 4000),
    (65_000, 2),
)
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I;16", "I", "F")
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "MPO")


def _process(data: bytes, spec: ImageProcessorSpec, folder: Path) -> int | None:
    """Tokens of a picture whose every patch is there; None if it is refused as the request's fault."""
    item = None
    with contextlib.suppress(UserError):
        item = process_image(decode_image(data, max_pixels=10**6), spec, folder)
    if item is None:
        assert not list(folder.iterdir())
        return None
    assert item.num_tokens > 0
    for unit in item.units:
        rows = read_rows(unit.pixels)
        assert rows.shape == (unit.num_patches, spec.row_bytes)
    for path in folder.iterdir():
        assert path.stat().st_size <= spec.max_bytes
        path.unlink()
    return item.num_tokens


@pytest.mark.parametrize("family", SPECS)
def test_sizes(family: str, tmp_path: Path) -> None:
    """Threat: tiny and odd images (CVE-2026-22773, GHSA-grg2-63fw-f2qr)."""
    done = {size: _process(encode(Image.new("RGB", size)), SPECS[family], tmp_path) for size in SIZES}
    assert all(done[size] for size in SIZES if max(size) <= 200 * min(size))
    if isinstance(SPECS[family], PatchProcessorSpec):
        assert done[65_000, 2] is None
        assert done[10_000, 1] is None or family == "glm4v"


@pytest.mark.parametrize("family", SPECS)
def test_modes_and_formats(family: str, tmp_path: Path) -> None:
    """Threat: orientation and alpha (CVE-2026-12491, GHSA-8jr5-v98p-w75m): every mode in every format that has it."""
    num_done = 0
    for mode, form in itertools.product(MODES, FORMATS):
        buffer = io.BytesIO()
        try:
            Image.new(mode, (60, 40)).save(buffer, form)
        except (OSError, ValueError, KeyError):
            continue  # this format has no such mode
        done = _process(buffer.getvalue(), SPECS[family], tmp_path)
        assert done or mode in ("I", "F"), (mode, form)
        num_done += bool(done)
    assert num_done > 25


def _red_above_blue() -> Image.Image:
    image = Image.new("RGB", (48, 64), "blue")
    image.paste((255, 0, 0), (0, 0, 48, 32))
    return image


def test_pictures_stand_upright_on_white() -> None:
    """Threat: orientation and alpha (CVE-2026-12491, GHSA-8jr5-v98p-w75m)."""
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = encode(_red_above_blue().transpose(Image.Transpose.ROTATE_90), "JPEG", exif=exif, quality=95)
    upright = decode_image(lying, max_pixels=10**6)
    assert upright.shape == (64, 48, 3)
    assert upright[8, 24, 0] > 200 > 60 > upright[56, 24, 0]
    palette = Image.new("P", (4, 4), 0)
    palette.putpalette([255, 0, 0, 0, 0, 255])
    palette.putpixel((0, 0), 1)
    pixels = decode_image(encode(palette, "PNG", transparency=0), max_pixels=100)
    assert (pixels[1:] == 255).all()
    assert pixels[0, 0].tolist() == [0, 0, 255]


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP", "MPO"])
def test_of_several_pictures_in_a_file_the_first_is_taken(form: str) -> None:
    """Threat: orientation and alpha (CVE-2026-12491): which frame of an animation is shown."""
    buffer = io.BytesIO()
    others = [Image.new("RGB", (48, 64), colour) for colour in ("green", "white")]
    _red_above_blue().save(buffer, form, save_all=True, append_images=others)
    pixels = decode_image(buffer.getvalue(), max_pixels=10**6).astype(int)
    assert np.abs(pixels[8, 24] - [255, 0, 0]).max() < 30
    assert np.abs(pixels[56, 24] - [0, 0, 255]).max() < 30


@pytest.mark.parametrize("data", [b"", b"\0", noise()[:-3000], noise()[:40], noise(image_format="GIF")[:1500]])
def test_what_is_no_whole_picture(data: bytes, tmp_path: Path) -> None:
    """Threat: tiny and odd images (CVE-2026-22773): no bytes, or too few of them."""
    assert all(_process(data, spec, tmp_path) is None for spec in SPECS.values())

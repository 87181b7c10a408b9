"""Pictures for tests, the same in every environment: made from whole numbers, or packaged with scikit-image."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Case:
    """A made-up picture and the limits to process it with."""

    kind: str
    height: int
    width: int
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280
    patch_size: int = 14

    @property
    def name(self):
        return f"{self.kind} {self.height}x{self.width} in {self.min_pixels}..{self.max_pixels} by {self.patch_size}"


CASES = (
    Case("noise", 1, 1),
    Case("noise", 1, 200),
    Case("noise", 200, 1),
    Case("noise", 3, 600),
    Case("smooth", 600, 3),
    Case("noise", 10, 2000),
    Case("noise", 2000, 10),
    Case("smooth", 37, 511),
    Case("noise", 37, 511),
    Case("smooth", 480, 640),
    Case("noise", 480, 640),
    Case("noise", 448, 448),
    Case("noise", 28, 28),
    Case("noise", 42, 70),  # halves: rounded to even multiples of a block
    Case("smooth", 5, 7, min_pixels=200_000),
    Case("noise", 90, 120, min_pixels=700_000),
    Case("noise", 1500, 2000, max_pixels=50_000),
    Case("smooth", 2000, 1500),
    Case("noise", 1000, 9, max_pixels=3_136),
    Case("noise", 333, 777, min_pixels=56 * 56, max_pixels=56 * 56),
    Case("noise", 480, 640, patch_size=16),
    Case("smooth", 37, 511, patch_size=16),
)

# Kind, height, width, side of a tile in pixels.
CANVAS_CASES = tuple(
    (*case, tile)
    for tile in (560, 56)
    for case in (
        ("noise", 1, 1),
        ("noise", 1, 200),
        ("noise", 3, 600),
        ("smooth", 600, 3),
        ("noise", 2000, 10),
        ("smooth", 37, 511),
        ("smooth", 480, 640),
        ("noise", 560, 560),
        ("noise", 561, 560),
        ("noise", 1120, 560),
        ("noise", 42, 70),
        ("noise", 1500, 2000),
        ("smooth", 300, 1000),
        ("noise", 1000, 3000),
    )
)

# With the limits of GLM-4V, which count each of the two frames of a patch.
GLM_CASES = tuple(
    Case(*case, min_pixels, max_pixels)
    for min_pixels, max_pixels in ((112 * 112, 28 * 28 * 15000), (112 * 112, 100_000), (1_500_000, 2_000_000))
    for case in (
        ("noise", 1, 1),
        ("noise", 1, 200),
        ("noise", 3, 600),
        ("smooth", 600, 3),
        ("noise", 2000, 10),
        ("smooth", 27, 511),
        ("noise", 13, 140),
        ("smooth", 480, 640),
        ("noise", 28, 28),
        ("noise", 42, 70),
        ("noise", 300, 1000),
    )
)


@dataclass(frozen=True)
class TileCase:
    """A made-up picture and the tiles that it is cut into."""

    kind: str
    height: int
    width: int
    tile_size: int = 336
    max_tiles: int = 16
    fills_canvas: bool = False

    @property
    def name(self):
        fills = " filled" if self.fills_canvas else ""
        return f"{self.kind} {self.height}x{self.width} in {self.max_tiles} of {self.tile_size}{fills}"


TILE_CASES = (
    TileCase("noise", 1, 1),
    TileCase("noise", 1, 200),
    TileCase("noise", 900, 2),
    TileCase("smooth", 37, 511),
    TileCase("noise", 336, 336),
    TileCase("noise", 337, 336),
    TileCase("smooth", 480, 640),
    TileCase("noise", 480, 640, max_tiles=4),
    TileCase("noise", 480, 640, max_tiles=1),
    TileCase("noise", 90, 120, fills_canvas=True),
    TileCase("smooth", 333, 777, tile_size=84, max_tiles=6),
    TileCase("noise", 100, 170, tile_size=84, max_tiles=6, fills_canvas=True),
    TileCase("noise", 84, 252, tile_size=84, max_tiles=6),
    TileCase("noise", 1300, 1700, tile_size=112),
    TileCase("smooth", 2000, 300),
)

# Sizes of pictures, as (height, width), and the tiles that they are fitted onto: (side, how many, whether filled).
CANVASES = ((336, 16, False), (336, 16, True), (448, 5, False), (84, 9, False))
CANVAS_SIZES = tuple(
    (1 + 7919 * number % limit, 1 + 104_729 * number % limit) for limit in (70, 700, 3000) for number in range(1, 31)
)

FILES = ("astronaut.png", "chelsea.png", "coffee.png", "rocket.jpg", "retina.jpg", "camera.png", "text.png")


def make_picture(kind, height, width):
    """[height, width, 3] uint8: independent values ("noise") or slow waves with hard edges ("smooth")."""
    if kind == "noise":
        data = np.random.RandomState(height * 10_007 + width).bytes(height * width * 3)
        return np.frombuffer(data, np.uint8).reshape(height, width, 3).copy()
    y, x, c = np.ogrid[:height, :width, :3]
    waves = (x * x // 97 + y * y // 53 + x * y // 31 + 71 * c) % 256
    blocks = 90 * ((x // 40 + y // 25 + c) % 2)
    return ((waves + blocks) // 2).astype(np.uint8)


def packaged_file(name):
    """The path of a picture in scikit-image's package, without importing it."""
    spec = importlib.util.find_spec("skimage")
    return Path(spec.origin).parent / "data" / name

"""Which canvas of tiles a picture is fitted onto, and how large it is there, as Llama 4 was trained. No torch."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from chiasm.schema.media import TileProcessorSpec


class Fit(NamedTuple):
    """A picture on its canvas.

    Attributes:
        tiles: (rows, columns) of the canvas.
        size: (height, width) of the picture on it, in pixels, from the top left; the rest is black.
    """

    tiles: tuple[int, int]
    size: tuple[int, int]


def fit_to_canvas(height: int, width: int, spec: TileProcessorSpec) -> Fit:
    """Choose the canvas that enlarges a picture least, or else the one that shrinks it least; on ties the smallest.

    On it a picture is enlarged only until its sides are a tile's, unless the spec says otherwise.

    Args:
        height: of the picture, in pixels; at least 1.
        width: likewise.
        spec: size and number of the tiles.
    """
    tiles = _best_canvas(height, width, spec)
    sides = [_Side(rows * spec.tile_size, is_exact=False) for rows in tiles]
    if not spec.fills_canvas:
        sides = [_bounded(max(side, spec.tile_size), full) for side, full in zip((height, width), sides, strict=True)]
    return Fit(tiles, _largest_within(height, width, sides[0], sides[1]))


class _Side(NamedTuple):
    """How long a side may be, and whether Hugging Face goes on from it in double or in single precision.

    There it is a plain number or an element of a tensor, depending on where it comes from; a picture's size can
    differ by a pixel between the two.
    """

    length: int
    is_exact: bool

    def over(self, length: int) -> float | np.float32:
        """How often ``length`` goes into it."""
        return self.length / length if self.is_exact else np.float32(self.length) / np.float32(length)


def _bounded(wanted: int, full: _Side) -> _Side:
    return full if full.length < wanted else _Side(wanted, is_exact=True)


def _largest_within(height: int, width: int, high: _Side, wide: _Side) -> tuple[int, int]:
    """The largest size of a picture within these sides, its aspect ratio kept."""
    by_height, by_width = high.over(height), wide.over(width)
    if _is_less(by_width, by_height):
        return max(1, min(_scaled(height, by_width), high.length)), wide.length
    return high.length, max(1, min(_scaled(width, by_height), wide.length))


def _is_less(first: float | np.float32, second: float | np.float32) -> bool:
    """In single precision as soon as one of them is."""
    return bool(first < second)  # numpy rounds the plain number, as torch does


def _scaled(length: int, factor: float | np.float32) -> int:
    return math.floor(length * factor if isinstance(factor, float) else np.float32(length) * factor)


def _best_canvas(height: int, width: int, spec: TileProcessorSpec) -> tuple[int, int]:
    canvases = _canvases(spec.max_tiles)
    sizes = np.array(canvases, np.float32) * np.float32(spec.tile_size)
    scales = (sizes / np.array([height, width], np.float32)).min(axis=1)
    enlarging = scales[scales >= 1]
    chosen = enlarging.min() if len(enlarging) and not spec.fills_canvas else scales.max()
    return min((canvas for canvas, scale in zip(canvases, scales, strict=True) if scale == chosen), key=math.prod)


@lru_cache(maxsize=16)
def _canvases(max_tiles: int) -> tuple[tuple[int, int], ...]:
    """(rows, columns) of all canvases; of two with as many tiles that fit as well, the first is taken.

    In order of the first canvas of their aspect ratio, from many tiles to few, then of rows.
    """
    by_ratio: dict[float, list[tuple[int, int]]] = {}
    for num_tiles in range(max_tiles, 0, -1):
        for rows in range(1, num_tiles + 1):
            if num_tiles % rows == 0:
                columns = num_tiles // rows
                by_ratio.setdefault(rows / columns, []).append((rows, columns))
    return tuple(canvas for alike in by_ratio.values() for canvas in alike)

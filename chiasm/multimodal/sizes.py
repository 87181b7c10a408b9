"""How large a picture becomes before it is cut into patches. Plain arithmetic, no torch."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec

from chiasm.errors import UserError
from chiasm.schema.media import MAX_ASPECT_RATIO, CanvasProcessorSpec, PatchProcessorSpec, VideoProcessorSpec

# The shared limit of a clip does not press a frame below so many times its least area; the models' own has it.
_ABOVE_LEAST = 1.05


def resized_size(height: int, width: int, spec: PatchProcessorSpec, *, param: str | None = None) -> tuple[int, int]:
    """The size in pixels to which a picture is resized, equal to what the models were trained with.

    Both sides become multiples of a merge block's side, and the area is brought into
    ``[min_pixels, max_pixels]`` with the aspect ratio kept as far as that allows. A very thin picture may end
    above ``max_pixels``: no side can be less than one block.

    Args:
        height: of the picture, in pixels; at least 1.
        width: likewise.
        spec: sizes of patches and blocks, and the range of the area.
        param: the request's field that holds the picture, for the error.

    Returns:
        (height, width) in pixels.

    Raises:
        UserError: if one side is more than 200 times the other.
    """
    block = spec.patch_size * spec.merge_size
    if spec.enlarges_thin:
        height, width = _enlarged_to(block, height, width)
    _check_aspect_ratio(height, width, param)
    # round() takes halves to the even multiple; the models' own preprocessing does so too.
    rounded = round(height / block) * block, round(width / block) * block
    area = rounded[0] * rounded[1]
    if area > spec.max_pixels:
        shrink = math.sqrt(height * width / spec.max_pixels)
        return _blocks_below(height / shrink, block), _blocks_below(width / shrink, block)
    if area < spec.min_pixels:
        grow = math.sqrt(spec.min_pixels / (height * width))
        return _blocks_above(height * grow, block), _blocks_above(width * grow, block)
    return rounded


class CanvasSize(NamedTuple):
    """A picture on its canvas; the rest of the canvas, to the right and below, is black.

    Attributes:
        tiles: (rows, columns) of tiles of the canvas.
        picture: (height, width) in pixels to which the picture is resized.
    """

    tiles: tuple[int, int]
    picture: tuple[int, int]


def size_on_canvas(height: int, width: int, spec: CanvasProcessorSpec) -> CanvasSize:
    """The canvas for a picture and its size there, equal to what the models were trained with.

    Args:
        height: of the picture, in pixels; at least 1.
        width: likewise.
        spec: tiles of a canvas.
    """
    tile = spec.tile_size
    rows, columns = fitting_tiles(height, width, tile, spec.canvas.num_tiles)
    most = min(max(height, tile), rows * tile), min(max(width, tile), columns * tile)
    scale_high, scale_wide = most[0] / height, most[1] / width
    if scale_wide < scale_high:
        picture = min(math.floor(height * scale_wide) or 1, most[0]), most[1]
    else:
        picture = most[0], min(math.floor(width * scale_high) or 1, most[1])
    return CanvasSize((rows, columns), picture)


def tile_layouts(num_tiles: int) -> list[tuple[int, int]]:
    """All (rows, columns) of at most so many tiles, in the order in which the models number them."""
    sides = range(1, num_tiles + 1)
    return [(rows, columns) for rows in sides for columns in sides if rows * columns <= num_tiles]


def fitting_tiles(height: float, width: float, tile: float, num_tiles: int) -> tuple[int, int]:
    """(rows, columns) of tiles for a picture: those that enlarge it least, or else those that shrink it least.

    Args:
        height: of the picture, in any unit.
        width: likewise.
        tile: side of a tile in the same unit.
        num_tiles: most tiles that there may be.
    """
    scales = {
        (rows, columns): min(rows * tile / height, columns * tile / width)
        for rows, columns in tile_layouts(num_tiles)
    }
    enlarging = [scale for scale in scales.values() if scale >= 1]
    chosen = min(enlarging) if enlarging else max(scales.values())
    return min((layout for layout, scale in scales.items() if scale == chosen), key=math.prod)


def resized_frame_size(
    num_frames: int, height: int, width: int, spec: VideoProcessorSpec, *, param: str | None = None
) -> tuple[int, int]:
    """The size in pixels to which every frame of a video is resized; as ``resized_size`` for pictures.

    Args:
        num_frames: frames that are taken.
        height: of a frame, in pixels; at least 1.
        width: likewise.
        spec: sizes of patches and blocks, and the limits on the area.
        param: the request's field that holds the video, for the error.

    Returns:
        (height, width) in pixels.

    Raises:
        UserError: if one side is more than 200 times the other.
    """
    if spec.area == "clip":
        return _size_in_clip(num_frames, height, width, spec.patches, param)
    patches = spec.patches
    if spec.max_clip_pixels:
        share = spec.max_clip_pixels * patches.temporal_patch_size // num_frames
        most = max(min(patches.max_pixels, share), int(patches.min_pixels * _ABOVE_LEAST))
        patches = msgspec.structs.replace(patches, max_pixels=most)
    return resized_size(height, width, patches, param=param)


def _size_in_clip(
    num_frames: int, height: int, width: int, spec: PatchProcessorSpec, param: str | None
) -> tuple[int, int]:
    block, multiple = spec.patch_size * spec.merge_size, spec.temporal_patch_size
    num_frames = max(num_frames, multiple)  # a single frame is repeated
    height, width = _enlarged_to(block, height, width)
    _check_aspect_ratio(height, width, param)
    rounded = round(height / block) * block, round(width / block) * block
    volume = round(num_frames / multiple) * multiple * rounded[0] * rounded[1]
    if volume > spec.max_pixels:
        shrink = math.sqrt(num_frames * height * width / spec.max_pixels)
        return _blocks_below(height / shrink, block), _blocks_below(width / shrink, block)
    if volume < spec.min_pixels:
        grow = math.sqrt(spec.min_pixels / (num_frames * height * width))
        return _blocks_above(height * grow, block), _blocks_above(width * grow, block)
    return rounded


def _enlarged_to(block: int, height: int, width: int) -> tuple[int, int]:
    """A thin picture with a side of a block; the cut may leave it a pixel less, as the models' own does."""
    if min(height, width) >= block:
        return height, width
    grow = max(block / height, block / width)
    return int(height * grow), int(width * grow)


def _check_aspect_ratio(height: int, width: int, param: str | None) -> None:
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise UserError(
            f"the image is {width} x {height} pixels; one side may be at most {MAX_ASPECT_RATIO} times the other.",
            param=param,
        )


def _blocks_below(side: float, block: int) -> int:
    return max(block, math.floor(side / block) * block)


def _blocks_above(side: float, block: int) -> int:
    return math.ceil(side / block) * block

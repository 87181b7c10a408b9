"""How large a picture becomes before it is cut into patches. Plain arithmetic, no torch."""

from __future__ import annotations

import math

import msgspec

from chiasm.errors import UserError
from chiasm.schema.media import MAX_ASPECT_RATIO, PatchProcessorSpec, VideoProcessorSpec

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

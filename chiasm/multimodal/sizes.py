"""How large a picture becomes before it is cut into patches. Plain arithmetic, no torch."""

from __future__ import annotations

import math

from chiasm.errors import UserError
from chiasm.schema.media import MAX_ASPECT_RATIO, PatchProcessorSpec


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
    if max(height, width) > MAX_ASPECT_RATIO * min(height, width):
        raise UserError(
            f"the image is {width} x {height} pixels; one side may be at most {MAX_ASPECT_RATIO} times the other.",
            param=param,
        )
    block = spec.patch_size * spec.merge_size
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


def _blocks_below(side: float, block: int) -> int:
    return max(block, math.floor(side / block) * block)


def _blocks_above(side: float, block: int) -> int:
    return math.ceil(side / block) * block

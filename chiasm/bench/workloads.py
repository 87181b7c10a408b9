"""What the encoder's benchmark encodes: named mixes of images and videos, or a file of them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from chiasm.errors import UserError
from chiasm.multimodal.sizes import fitting_tiles
from chiasm.schema.facts import EncoderShape
from chiasm.schema.media import PixelRef, Unit

Item = tuple[int, int, int]
"""An image or a video as (time, rows, columns) of its patch grid."""

Batch = tuple[Item, ...]

_MIX_SEED = 0
_MIX_BATCHES = 1000
_MOST_UNITS = 10_000
_MOST_PATCHES = 2**22


class Workload(NamedTuple):
    """Items that are encoded together, once or, with other items, several times."""

    name: str
    batches: tuple[Batch, ...]


def image(num_patches: float, aspect: float = 1.0) -> Item:
    """An image of about so many patches, with even sides; ``aspect`` is columns to rows."""
    rows = max(2, 2 * round(math.sqrt(num_patches / aspect) / 2))
    return (1, rows, max(2, 2 * round(num_patches / rows / 2)))


def video(num_frames: int, num_patches: float, aspect: float = 4 / 3) -> Item:
    """A video of so many temporal slices of about so many patches."""
    _, rows, columns = image(num_patches, aspect)
    return (num_frames, rows, columns)


def _log_uniform(draw: random.Random, low: float, high: float) -> float:
    return math.exp(draw.uniform(math.log(low), math.log(high)))


def _two_videos_and_images() -> Batch:
    draw = random.Random(_MIX_SEED)
    images = [image(_log_uniform(draw, 256, 4096), draw.uniform(0.5, 2)) for _ in range(30)]
    return (video(16, 1200), video(16, 1200), *images)


def _mix_of_12() -> Batch:
    draw = random.Random(_MIX_SEED)
    images = [image(_log_uniform(draw, 64, 1024), draw.uniform(0.5, 2)) for _ in range(10)]
    return (*images[:5], video(4, 256), *images[5:], video(3, 192))


def _random_batch(draw: random.Random) -> Batch:
    """1 to 16 items, a fifth of them videos."""
    items = []
    for _ in range(draw.randint(1, 16)):
        aspect = draw.uniform(0.5, 2)
        if draw.random() < 0.2:
            items.append(video(draw.randint(4, 48), draw.uniform(256, 1600), aspect))
        else:
            items.append(image(_log_uniform(draw, 256, 16384), aspect))
    return tuple(items)


def _random_mix() -> tuple[Batch, ...]:
    draw = random.Random(_MIX_SEED)
    return tuple(_random_batch(draw) for _ in range(_MIX_BATCHES))


_NAMED: dict[str, Callable[[], tuple[Batch, ...]]] = {
    "one-image": lambda: ((image(4096),),),
    "one-big-image": lambda: ((image(16384),),),
    "one-video": lambda: ((video(32, 1200),),),
    "video+7-images": lambda: ((video(64, 1200), *[image(1024)] * 7),),
    "one-big+16": lambda: ((image(16384), *[image(1024)] * 16),),
    "2-videos+30-images": lambda: (_two_videos_and_images(),),
    "nine-images": lambda: ((image(1024),) * 9,),
    "random-mix": _random_mix,
}

_SMALL: dict[str, Callable[[], tuple[Batch, ...]]] = {
    "short-video": lambda: ((video(4, 1024, aspect=1.0),),),
    "mix-of-12": lambda: (_mix_of_12(),),
}
NAMES = (*_NAMED, *_SMALL)
GROUPS = {"named": tuple(_NAMED), "small": ("one-image", *_SMALL)}
"""Words that stand for several workloads; those of "small" suit a CPU."""


def find_workloads(name: str) -> list[Workload]:
    """A named workload, those of a group, or the one in a file.

    Raises:
        UserError: if there is none.
    """
    known = _NAMED | _SMALL
    if name in known or name in GROUPS:
        return [Workload(each, known[each]()) for each in GROUPS.get(name, (name,))]
    if not name.endswith(".json"):
        words = ", ".join((*NAMES, *GROUPS))
        raise UserError(f"workload must be one of {words}, or a file that ends in .json.", param="workload")
    return [Workload(Path(name).stem, (_read_batch(Path(name)),))]


def _read_batch(file: Path) -> Batch:
    """A JSON list of [time, rows, columns]."""
    try:
        items = msgspec.json.decode(file.read_bytes(), type=list[Item])
    except OSError as error:
        raise UserError(f"workload {file.name} can't be read: {error.strerror}.", param="workload") from error
    except msgspec.DecodeError as error:
        raise UserError(
            f"workload {file.name} must be a list of [time, rows, columns]: {error}", param="workload"
        ) from error
    if not items or any(side < 1 for item in items for side in item):
        raise UserError(f"workload {file.name} must have items, all of whose sides are at least 1.", param="workload")
    num_units = sum(frames for frames, _, _ in items)
    num_patches = sum(math.prod(item) for item in items)
    if num_units > _MOST_UNITS or num_patches > _MOST_PATCHES:
        raise UserError(
            f"workload {file.name} must have at most {_MOST_UNITS} images and frames of {_MOST_PATCHES} patches in "
            f"all, got {num_units} of {num_patches}.",
            param="workload",
        )
    return tuple(items)


def units_of(batch: Sequence[Item], shape: EncoderShape) -> list[list[Unit]]:
    """The units of each item, without pixels.

    Raises:
        UserError: if a side is no multiple of the tower's merge blocks.
    """
    return [
        [
            unit_of(f"{number}.{index}", grid, shape, PixelRef("", 0, math.prod(grid), 0))
            for index, grid in enumerate(unit_grids(item, shape))
        ]
        for number, item in enumerate(batch)
    ]


def unit_grids(item: Item, shape: EncoderShape) -> list[tuple[int, int]]:
    """The grid of each unit of an item.

    Where pictures are cut into tiles, an image has as many as cover it, and an overview if that is more than one.
    Where a unit is put together of tiles, an image has those on which it fits best.

    Raises:
        UserError: if a side is no multiple of the tower's merge blocks.
    """
    frames, rows, columns = item
    side = shape.tile_side
    if side:
        num_tiles = -(-rows // side) * -(-columns // side)
        return [(side, side)] * (frames * (num_tiles + (num_tiles > 1)))
    if shape.canvas is not None:
        tiles = fitting_tiles(rows, columns, shape.canvas.side, shape.canvas.num_tiles)
        return [(tiles[0] * shape.canvas.side, tiles[1] * shape.canvas.side)] * frames
    if rows % shape.merge_size or columns % shape.merge_size:
        raise UserError(f"the sides of {item} must be multiples of {shape.merge_size} patches.", param="workload")
    return [(rows, columns)] * frames


def unit_of(key: str, grid: tuple[int, int], shape: EncoderShape, pixels: PixelRef) -> Unit:
    """The unit of a grid that ``unit_grids`` gave."""
    if shape.canvas is not None:
        return shape.canvas.unit(key, grid, pixels)
    return Unit(key, grid, grid[0] * grid[1] // shape.block_rows, pixels)

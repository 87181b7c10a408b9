"""Whether a worker's reply can be true: a picture may have taken the worker over, and the engine trusts an item."""

from __future__ import annotations

import math
import re
import stat
from itertools import accumulate
from pathlib import Path

from chiasm.multimodal.jobs import Job, Refused
from chiasm.schema.media import (
    CanvasProcessorSpec,
    MediaSpec,
    PatchProcessorSpec,
    PixelRef,
    ProcessedItem,
    TileProcessorSpec,
    Unit,
    VideoProcessorSpec,
)

_MAX_CHARS = 300
_STATUSES = (400, 422)  # that decoding has
_KEY = re.compile(r"[0-9a-f]{64}")


class ForgedReplyError(RuntimeError):
    """A worker answered what no sound worker would."""


def check_item(item: ProcessedItem, job: Job, path: Path) -> None:
    """Refuse an item that contradicts itself, the job or the file that was to be written.

    What pixels show, and so whether a key is theirs, is not looked at.

    Args:
        item: as the worker has it.
        job: that it was given.
        path: the file of pixels that it was to write.

    Raises:
        ForgedReplyError: naming the field.
    """
    _require(item.modality == job.noun, "modality")
    _require(bool(item.units), "units")
    for unit in item.units:
        _require(_KEY.fullmatch(unit.key) is not None, "key")
        _require(unit == _unit_of_grid(unit, job.spec), "unit")
        _require(unit.grid == item.units[0].grid, "grid")
    _check_pixels(item.units, _patches(job.spec).row_bytes, path)
    _require(item.num_pixels >= 0, "num_pixels")
    _check_whole(item, job.spec)


def check_refusal(refused: Refused, job: Job) -> None:
    """Refuse a refusal that is not for this job's client: it is told word by word.

    Raises:
        ForgedReplyError: naming the field.
    """
    check_message(refused.message)
    _require(refused.param == job.param or (job.param, refused.param) == (None, job.noun), "param")
    _require(refused.status in _STATUSES, "status")


def check_message(message: str) -> None:
    """Refuse words that are not one short line of plain letters.

    Raises:
        ForgedReplyError: without quoting them.
    """
    _require(len(message) <= _MAX_CHARS and message.isascii() and message.isprintable(), "message")


def _check_pixels(units: tuple[Unit, ...], row_bytes: int, path: Path) -> None:
    """Rows follow one another from the start of the worker's own file to its end."""
    ends = list(accumulate(unit.num_patches for unit in units))
    for unit, end in zip(units, ends, strict=True):
        _require(unit.pixels == PixelRef(str(path), end - unit.num_patches, unit.num_patches, row_bytes), "pixels")
    try:
        status = path.lstat()
    except OSError as error:
        raise ForgedReplyError("a preprocessing worker's reply names a file that is not there") from error
    _require(stat.S_ISREG(status.st_mode) and status.st_size == ends[-1] * row_bytes, "file")


def _check_whole(item: ProcessedItem, spec: MediaSpec) -> None:
    """What depends on all units together."""
    num_units = len(item.units)
    # A canvas is seen through one token, in layers of its own.
    is_canvas = isinstance(spec, CanvasProcessorSpec)
    _require(item.num_tokens == (1 if is_canvas else sum(unit.num_tokens for unit in item.units)), "num_tokens")
    num_frames = num_units * spec.patches.temporal_patch_size if isinstance(spec, VideoProcessorSpec) else 0
    _require(len(item.frame_seconds) == num_frames, "frame_seconds")
    _require(all(_is_time(seconds) for seconds in (*item.frame_seconds, item.seconds_per_slice)), "seconds")
    if isinstance(spec, TileProcessorSpec):
        num_tiles = item.canvas[0] * item.canvas[1]
        _require(min(item.canvas) > 0 and num_tiles <= spec.max_tiles, "canvas")
        _require(num_units == num_tiles + (num_tiles > 1), "units")
    else:
        _require(item.canvas == (1, 1), "canvas")
        _require(num_units == 1 or isinstance(spec, VideoProcessorSpec), "units")


def _unit_of_grid(unit: Unit, spec: MediaSpec) -> Unit:
    """The unit as its grid has it."""
    rows, columns = unit.grid
    if isinstance(spec, CanvasProcessorSpec):
        _require(min(unit.grid) > 0 and spec.canvas.has_grid(unit.grid), "grid")
        return spec.canvas.unit(unit.key, unit.grid, unit.pixels)
    patches = _patches(spec)
    merge = patches.merge_size
    _require(min(unit.grid) > 0 and rows % merge == columns % merge == 0, "grid")
    num_tokens = rows * columns // merge**2
    if isinstance(spec, TileProcessorSpec):
        _require(rows == columns == spec.tile_size // spec.patch_size, "grid")
    else:
        most = spec.max_slice_tokens if isinstance(spec, VideoProcessorSpec) else spec.max_unit_tokens
        _require(num_tokens <= most, "grid")
    return Unit(unit.key, unit.grid, num_tokens, unit.pixels)


def _patches(spec: MediaSpec) -> PatchProcessorSpec | TileProcessorSpec | CanvasProcessorSpec:
    return spec.patches if isinstance(spec, VideoProcessorSpec) else spec


def _is_time(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds >= 0


def _require(is_true: bool, field: str) -> None:
    if not is_true:
        raise ForgedReplyError(f"a preprocessing worker's reply can't be true: {field}")

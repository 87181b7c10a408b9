"""From decoded pictures to units with their pixels on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chiasm.multimodal.canvas import fit_to_canvas
from chiasm.multimodal.hashing import unit_key
from chiasm.multimodal.patches import cut_into_patches
from chiasm.multimodal.pixels import new_file_name, write_rows
from chiasm.multimodal.resize import resize
from chiasm.multimodal.sizes import resized_frame_size, resized_size, size_on_canvas
from chiasm.multimodal.units import cut_into_units
from chiasm.schema.media import (
    CanvasProcessorSpec,
    FrameTimes,
    ImageProcessorSpec,
    PatchLayout,
    ProcessedItem,
    TileProcessorSpec,
    Unit,
    VideoProcessorSpec,
)

Frame = npt.NDArray[np.uint8]
"""[height, width, 3] uint8, RGB."""

Planes = npt.NDArray[np.uint8]
"""[3, height, width] uint8, RGB."""


def process_image(
    image: Frame,
    spec: ImageProcessorSpec,
    pixel_folder: Path,
    *,
    file_name: str | None = None,
    param: str | None = None,
) -> ProcessedItem:
    """Resize a picture, cut it into patches, tile by tile where there are tiles, and write them into one new file.

    Args:
        image: see ``decode.decode_image``.
        spec: how pictures become patches.
        pixel_folder: where the file goes.
        file_name: its name, for a caller that must be able to clean up after a crash; None invents one.
        param: the request's field that holds the picture, for errors.

    Returns:
        An item of one unit, or of one for each tile. Whoever receives it deletes the file
        (``pixels.discard_pixels``).

    Raises:
        UserError: if the picture is too thin.
        OverloadedError: if there is no space left for the pixels.
    """
    path = pixel_folder / (file_name or new_file_name())
    if isinstance(spec, TileProcessorSpec):
        return _process_tiles(image, spec, path)
    if isinstance(spec, CanvasProcessorSpec):
        return ProcessedItem("image", 1, (_write_canvas(image, spec, path),))
    size = resized_size(image.shape[0], image.shape[1], spec, param=param)
    units = _write_units([(resize(image, *size, "bicubic"),)], spec, path)
    return ProcessedItem("image", _num_tokens(units), units)


def _process_tiles(image: Frame, spec: TileProcessorSpec, path: Path) -> ProcessedItem:
    tiles, size = fit_to_canvas(image.shape[0], image.shape[1], spec)
    side = spec.tile_size
    cut = _cut_canvas(resize(image, *size, "bilinear"), tiles, side)
    overview = [resize(image, side, side, "bilinear")] if len(cut) > 1 else []
    units = _write_units([(planes,) for planes in (*cut, *overview)], spec, path)
    return ProcessedItem("image", _num_tokens(units), units, canvas=tiles)


def _write_canvas(image: Frame, spec: CanvasProcessorSpec, path: Path) -> Unit:
    """The unit of a picture on its canvas, whose pixels are in a new file, tile by tile."""
    tiles, size = size_on_canvas(image.shape[0], image.shape[1], spec)
    cut = _cut_canvas(resize(image, *size, "bilinear"), tiles, spec.tile_size)
    rows = np.concatenate([cut_into_patches([planes], spec) for planes in cut])
    grid = tiles[0] * spec.canvas.side, tiles[1] * spec.canvas.side
    return spec.canvas.unit(unit_key(rows, grid, spec), grid, write_rows([rows], path))


def _cut_canvas(planes: Planes, tiles: tuple[int, int], side: int) -> Planes:
    """The tiles of a canvas with a picture in its upper left corner, row by row: [tiles, 3, side, side]."""
    canvas = np.zeros((3, tiles[0] * side, tiles[1] * side), np.uint8)
    canvas[:, : planes.shape[1], : planes.shape[2]] = planes
    return canvas.reshape(3, tiles[0], side, tiles[1], side).transpose(1, 3, 0, 2, 4).reshape(-1, 3, side, side)


def process_video(
    frames: Iterable[Frame],
    times: FrameTimes,
    spec: VideoProcessorSpec,
    pixel_folder: Path,
    *,
    file_name: str | None = None,
    param: str | None = None,
) -> ProcessedItem:
    """Resize the frames of a video and cut them into patches, slice by slice, so that few are in memory at a time.

    Args:
        frames: those that ``times`` names, in order, all of one size.
        times: which frames they are.
        spec: how videos become patches.
        pixel_folder: where the file goes.
        file_name: its name; see ``process_image``.
        param: the request's field that holds the video, for errors.

    Returns:
        An item of one unit for each slice.

    Raises:
        UserError: if the frames are too thin, and what ``frames`` raises.
        OverloadedError: if there is no space left for the pixels.
    """
    depth = spec.patches.temporal_patch_size
    left = iter(frames)
    first = next(left)
    size = resized_frame_size(len(times.indices), first.shape[0], first.shape[1], spec, param=param)
    path = pixel_folder / (file_name or new_file_name())
    resized = (resize(frame, *size, "bicubic") for frame in chain([first], left))
    units = _write_units(_in_slices(resized, depth), spec.patches, path)
    return ProcessedItem(
        "video", _num_tokens(units), units, depth / times.sampled_fps, frame_seconds=times.seconds(depth)
    )


def _write_units(slices: Iterable[tuple[Planes, ...]], spec: PatchLayout, path: Path) -> tuple[Unit, ...]:
    """The units of slices of frames, or of tiles, all of one size, whose pixels are in one new file."""
    keys = []
    grid = (0, 0)

    def cut() -> Iterator[npt.NDArray[np.uint8]]:
        nonlocal grid
        for planes in slices:
            grid = planes[0].shape[1] // spec.patch_size, planes[0].shape[2] // spec.patch_size
            rows = cut_into_patches(planes, spec)
            keys.append(unit_key(rows, grid, spec))
            yield rows

    pixels = write_rows(cut(), path)
    return cut_into_units(keys, grid, spec, pixels)


def _in_slices(frames: Iterable[Planes], depth: int) -> Iterator[tuple[Planes, ...]]:
    left = iter(frames)
    while taken := tuple(islice(left, depth)):
        yield taken


def _num_tokens(units: Iterable[Unit]) -> int:
    return sum(unit.num_tokens for unit in units)

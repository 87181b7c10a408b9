"""From decoded pictures to units with their pixels on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from chiasm.multimodal.hashing import unit_key
from chiasm.multimodal.patches import cut_into_patches
from chiasm.multimodal.pixels import new_file_name, write_rows
from chiasm.multimodal.resize import resize_bicubic
from chiasm.multimodal.sizes import resized_frame_size, resized_size
from chiasm.multimodal.units import cut_into_units
from chiasm.schema.media import FrameTimes, PatchProcessorSpec, ProcessedItem, Unit, VideoProcessorSpec

Frame = npt.NDArray[np.uint8]
"""[height, width, 3] uint8, RGB."""


def process_image(
    image: Frame,
    spec: PatchProcessorSpec,
    pixel_folder: Path,
    *,
    file_name: str | None = None,
    param: str | None = None,
) -> ProcessedItem:
    """Resize a picture, cut it into patches and write them into one new file.

    Args:
        image: see ``decode.decode_image``.
        spec: how pictures become patches.
        pixel_folder: where the file goes.
        file_name: its name, for a caller that must be able to clean up after a crash; None invents one.
        param: the request's field that holds the picture, for errors.

    Returns:
        An item of one unit. Whoever receives it deletes the file (``pixels.discard_pixels``).

    Raises:
        UserError: if the picture is too thin.
        OverloadedError: if there is no space left for the pixels.
    """
    size = resized_size(image.shape[0], image.shape[1], spec, param=param)
    units = _write_units([(image,)], size, spec, pixel_folder / (file_name or new_file_name()))
    return ProcessedItem("image", _num_tokens(units), units)


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
    units = _write_units(_in_slices(chain([first], left), depth), size, spec.patches, path)
    return ProcessedItem(
        "video", _num_tokens(units), units, depth / times.sampled_fps, frame_seconds=times.seconds(depth)
    )


def _write_units(
    slices: Iterable[tuple[Frame, ...]], size: tuple[int, int], spec: PatchProcessorSpec, path: Path
) -> tuple[Unit, ...]:
    """The units of slices of frames, whose pixels are in one new file."""
    grid = size[0] // spec.patch_size, size[1] // spec.patch_size
    keys = []

    def cut() -> Iterator[npt.NDArray[np.uint8]]:
        for frames in slices:
            rows = cut_into_patches([resize_bicubic(frame, *size) for frame in frames], spec)
            keys.append(unit_key(rows, grid, spec))
            yield rows

    pixels = write_rows(cut(), path)
    return cut_into_units(keys, grid, spec, pixels)


def _in_slices(frames: Iterable[Frame], depth: int) -> Iterator[tuple[Frame, ...]]:
    left = iter(frames)
    while taken := tuple(islice(left, depth)):
        yield taken


def _num_tokens(units: Iterable[Unit]) -> int:
    return sum(unit.num_tokens for unit in units)

"""From a decoded picture to units with their pixels on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from chiasm.multimodal.patches import cut_into_patches
from chiasm.multimodal.pixels import new_file_name, write_rows
from chiasm.multimodal.resize import resize_bicubic
from chiasm.multimodal.sizes import resized_size
from chiasm.multimodal.units import cut_into_units
from chiasm.schema.media import PatchProcessorSpec, ProcessedItem


def process_image(
    image: npt.NDArray[np.uint8],
    spec: PatchProcessorSpec,
    pixel_folder: Path,
    *,
    file_name: str | None = None,
    param: str | None = None,
) -> ProcessedItem:
    """Resize a picture, cut it into patches and write them into one new file.

    Args:
        image: [height, width, 3] uint8, RGB; see ``decode.decode_image``.
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
    height, width = resized_size(image.shape[0], image.shape[1], spec, param=param)
    rows = cut_into_patches(resize_bicubic(image, height, width), spec)
    thw = (1, height // spec.patch_size, width // spec.patch_size)
    pixels = write_rows(rows, pixel_folder / (file_name or new_file_name()))
    units = cut_into_units(rows, thw, spec, pixels)
    return ProcessedItem(modality="image", num_tokens=sum(unit.num_tokens for unit in units), units=units)

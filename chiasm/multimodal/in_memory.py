"""Pictures that a Python program hands over as objects: Pillow images and arrays."""

from __future__ import annotations

import numpy as np
from PIL import Image

from chiasm.errors import refuse
from chiasm.multimodal.decode import array_to_rgb, image_to_rgb
from chiasm.multimodal.sources import MediaSource


def source_of_object(picture: object, *, max_pixels: int, param: str | None = None) -> MediaSource:
    """Decoded pixels for the preprocessing pool. Takes as long as decoding does: call it in a thread.

    Args:
        picture: a Pillow image, or a uint8 array of shape [height, width] or [height, width, 3 or 4].
        max_pixels: largest picture to accept.
        param: the field that holds it, for errors.

    Raises:
        UserError: for anything else, and for pictures that ``decode`` refuses.
    """
    if isinstance(picture, Image.Image):
        pixels = image_to_rgb(picture, max_pixels=max_pixels, param=param)
    elif isinstance(picture, np.ndarray):
        pixels = array_to_rgb(picture, max_pixels=max_pixels, param=param)
    else:
        refuse(param or "image", type(picture).__name__, "a URL, a PIL image or a numpy array")
    return MediaSource("rgb", pixels.tobytes(), (pixels.shape[0], pixels.shape[1]))

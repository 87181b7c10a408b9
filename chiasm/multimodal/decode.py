"""Encoded pictures to RGB, distrusting every byte.

Accepted are JPEG, PNG, WebP, GIF and BMP, told apart by their content; of an animation the first frame is taken.
TIFF, JPEG 2000 and the rest of what Pillow knows are left out: large decoders that few pictures need. Meant for a
preprocessing process, which a hostile picture may take down.
"""

from __future__ import annotations

import io
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt
from PIL import Image
from PIL.PngImagePlugin import PngImageFile

from chiasm.errors import UserError, refuse
from chiasm.multimodal.png import Png, check_pixels, is_png, is_transparent, read_png

ACCEPTED_FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP")

_WHITE = (255, 255, 255, 255)
_ORIENTATION_TAG = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# These do not say which number is white: any scaling would be a guess.
_UNSCALED_MODES = ("I", "F")


def decode_image(data: bytes | bytearray, *, max_pixels: int, param: str | None = None) -> npt.NDArray[np.uint8]:
    """Decode a picture: turned upright, transparency laid on white, first frame, 8 bits a channel.

    Args:
        data: the file's content.
        max_pixels: largest picture to decode, by the size that its header claims.
        param: the request's field that holds it, for errors.

    Returns:
        [height, width, 3] uint8, RGB.

    Raises:
        UserError: if it is too large, of a format that is not accepted, broken or cut short.
    """
    png = None
    try:
        if is_png(data):
            png = read_png(data)
        image = Image.open(io.BytesIO(data if png is None else png.data), formats=ACCEPTED_FORMATS)
    except Image.DecompressionBombError:  # Pillow's own limit, where it was left on
        refuse(param or "image", "more", f"at most {max_pixels} pixels in size")
    except Exception as error:
        _refuse_undecodable(param, error)
    return _to_rgb(image, png, max_pixels, param)


def image_to_rgb(image: Image.Image, *, max_pixels: int, param: str | None = None) -> npt.NDArray[np.uint8]:
    """The same for a Pillow image, which may not be decoded yet.

    Raises:
        UserError: see ``decode_image``; also for modes "I" and "F", which do not say what is white.
    """
    data = _undecoded_png(image)
    if data is not None:
        return decode_image(data, max_pixels=max_pixels, param=param)
    return _to_rgb(image, None, max_pixels, param)


def array_to_rgb(array: npt.NDArray[Any], *, max_pixels: int, param: str | None = None) -> npt.NDArray[np.uint8]:
    """The same for an array of pixels.

    Args:
        array: [height, width], [height, width, 3] or [height, width, 4] (transparency last), uint8.
        max_pixels: largest picture to accept.
        param: the field that holds it, for errors.

    Raises:
        UserError: for any other shape or type, and where channels last can't be told from channels first.
    """
    accepted = "a uint8 array of shape [height, width], [height, width, 3] or [height, width, 4]"
    is_colour = array.ndim == 3 and array.shape[2] in (3, 4)
    if array.dtype != np.uint8 or not (array.ndim == 2 or is_colour):
        refuse(param or "image", f"{array.dtype} of shape {array.shape}", accepted)
    if is_colour and array.shape[0] in (3, 4):
        refuse(param or "image", array.shape, f"{accepted}; where its channels may be first too, pass a PIL image")
    _check_size(array.shape[1], array.shape[0], max_pixels, param)
    return np.array(_flatten(Image.fromarray(array)))


def _undecoded_png(image: Image.Image) -> bytes | None:
    """The file of a PNG that is opened and no more: Pillow would not see all that is wrong with it."""
    if not isinstance(image, PngImageFile) or not image.tile or image.fp is None or image.tell():
        return None
    place = image.fp.tell()
    image.fp.seek(0)
    data = image.fp.read()
    image.fp.seek(place)
    return data if is_png(data) else None


def _to_rgb(image: Image.Image, png: Png | None, max_pixels: int, param: str | None) -> npt.NDArray[np.uint8]:
    _check_size(image.width, image.height, max_pixels, param)
    if image.mode in _UNSCALED_MODES:
        refuse(param or "image", f"mode {image.mode}", "of 8 or 16 bits a channel; convert it to RGB first")
    # Whatever a decoder raises on hostile bytes is the picture's fault, and its words stay inside: decoders'
    # messages have held addresses and paths.
    try:
        if png is not None:
            check_pixels(png.data)
        image.load()  # here and not within what may fail: after its first error Pillow takes the rest for black
        if png is not None and png.transparent is not None:
            clear = is_transparent(png.data, png.transparent, max_pixels)
            image.putalpha(Image.fromarray(np.where(clear, 0, 255).astype(np.uint8)))
        return np.array(_flatten(_turn_upright(_without_unused_alpha(image))))
    except Exception as error:
        _refuse_undecodable(param, error)


def _check_size(width: int, height: int, max_pixels: int, param: str | None) -> None:
    if not 0 < width * height <= max_pixels:
        refuse(param or "image", f"{width} x {height}", f"between 1 and {max_pixels} pixels in size")


def _refuse_undecodable(param: str | None, error: Exception) -> NoReturn:
    formats = ", ".join(ACCEPTED_FORMATS)
    raise UserError(f"the data can't be decoded as an image; accepted formats are {formats}.", param=param) from error


def _turn_upright(image: Image.Image) -> Image.Image:
    try:
        orientation = image.getexif().get(_ORIENTATION_TAG)
    except Exception:  # a broken note beside the picture does not make the picture unreadable
        return image
    return image.transpose(_UPRIGHT[orientation]) if orientation in _UPRIGHT else image


def _without_unused_alpha(image: Image.Image) -> Image.Image:
    """A BMP's fourth byte is often nothing: where it is 0 everywhere it says nothing, as browsers have it."""
    if image.format == "BMP" and image.mode == "RGBA" and image.getchannel("A").getextrema() == (0, 0):
        return image.convert("RGB")
    return image


def _flatten(image: Image.Image) -> Image.Image:
    """The picture in mode RGB, on a white ground."""
    if image.mode.startswith("I;16"):
        image = _to_8_bits(image)
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    ground = Image.new("RGBA", image.size, _WHITE)
    ground.alpha_composite(image.convert("RGBA"))
    return ground.convert("RGB")


def _to_8_bits(image: Image.Image) -> Image.Image:
    """A 16-bit grey picture by its upper bytes, as Pillow itself reads 16-bit colours."""
    values = np.asarray(image)
    grey = (values >> 8).astype(np.uint8)
    if "transparency" in image.info:
        grey[values == image.info["transparency"]] = 255
    return Image.fromarray(grey)

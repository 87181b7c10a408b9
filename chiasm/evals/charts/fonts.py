"""The typefaces of charts. They come with the package, so that a seed gives the same pixels anywhere.

Those in ``faces/`` are DejaVu's (LICENSE_DEJAVU there), cut down to ASCII with fontTools' ``pyftsubset``.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.resources import files
from io import BytesIO

from PIL import ImageFont
from PIL.ImageFont import FreeTypeFont

PLAIN = "Aileron"
"""Pillow's own typeface."""

_FILES = {
    "sans": "DejaVuSans.ttf",
    "bold": "DejaVuSans-Bold.ttf",
    "serif": "DejaVuSerif.ttf",
    "mono": "DejaVuSansMono.ttf",
}
FACES = (PLAIN, *_FILES)


@lru_cache(maxsize=128)
def load_font(size: int, face: str = PLAIN) -> FreeTypeFont:
    """A typeface of ``FACES`` at a size in pixels."""
    if face == PLAIN:
        font = ImageFont.load_default(size)
        assert isinstance(font, FreeTypeFont)
        return font
    data = (files("chiasm.evals.charts") / "faces" / _FILES[face]).read_bytes()
    return ImageFont.truetype(BytesIO(data), size, layout_engine=ImageFont.Layout.BASIC)

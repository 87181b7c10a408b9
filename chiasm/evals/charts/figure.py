"""A canvas that remembers what was drawn where: each glyph, and the area of each element."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Literal, NamedTuple

from PIL import Image, ImageDraw, ImageFont

Rgb = tuple[int, int, int]
Align = Literal["left", "middle", "right"]


class Box(NamedTuple):
    """A rectangle in pixels; right and bottom are one past the last pixel."""

    left: float
    top: float
    right: float
    bottom: float


class Glyph(NamedTuple):
    """A drawn character, its centre, and for a digit of a number its place: 0 for units, 1 for tens and so on."""

    char: str
    x: float
    y: float
    place: int = -1


class Region(NamedTuple):
    """An area that belongs to one element, to the title or to an entry of a legend: a body, or a text about it."""

    mark: int
    box: Box
    is_text: bool


@dataclass(frozen=True)
class Mark:
    """One element of a chart.

    Attributes:
        label: its name.
        value: the printed number; for a group of scattered points how many they are.
        colour: the name of its colour; empty where colour says nothing.
        series: the name of its series in a grouped chart; empty otherwise.
    """

    label: str
    value: int
    colour: str = ""
    series: str = ""


@lru_cache(maxsize=64)
def font(size: int) -> ImageFont.FreeTypeFont:
    """Pillow's own typeface."""
    face = ImageFont.load_default(size)
    assert isinstance(face, ImageFont.FreeTypeFont)
    return face


def text_width(text: str, size: int) -> float:
    """How wide a line of text is."""
    return font(size).getlength(text)


class Figure:
    """An image in the making.

    Args:
        width: in pixels.
        height: in pixels.
        rng: for the tones of this figure.
    """

    def __init__(self, width: int, height: int, rng: Random) -> None:
        tone = rng.randint(236, 255)
        self.background: Rgb = (tone, min(255, tone + rng.randint(-6, 6)), min(255, tone + rng.randint(-6, 6)))
        self.ink: Rgb = (rng.randint(0, 60), rng.randint(0, 60), rng.randint(0, 60))
        self.image = Image.new("RGB", (width, height), self.background)
        self.draw = ImageDraw.Draw(self.image)
        self.glyphs: list[Glyph] = []
        self.regions: list[Region] = []
        self.width, self.height = width, height

    def text(
        self, x: float, y: float, text: str, size: int, *, align: Align = "middle", mark: int | None = None
    ) -> Box:
        """Draw a line of text whose middle height is ``y``, and remember its glyphs."""
        face = font(size)
        width = face.getlength(text)
        left = round({"left": x, "middle": x - width / 2, "right": x - width}[align])
        self.draw.text((left, round(y)), text, fill=self.ink, font=face, anchor="lm")
        box = Box(left, y - size / 2, left + width, y + size / 2)
        start = 0.0
        for index, char in enumerate(text):
            end = face.getlength(text[: index + 1])
            if char != " ":
                place = len(text) - 1 - index if text.isdigit() else -1
                self.glyphs.append(Glyph(char, left + (start + end) / 2, y, place))
            start = end
        if mark is not None:
            self.regions.append(Region(mark, box, is_text=True))
        return box

    def area(self, mark: int, box: Box) -> None:
        """Remember that an area belongs to an element."""
        self.regions.append(Region(mark, box, is_text=False))

    def line(self, *points: tuple[float, float], width: int = 1, fill: Rgb | None = None) -> None:
        """Draw a line through points."""
        self.draw.line(points, fill=fill or self.ink, width=width)

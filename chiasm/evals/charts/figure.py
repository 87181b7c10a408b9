"""A canvas that remembers what was drawn where: each glyph, and the area of each element."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal, NamedTuple

from PIL import Image, ImageDraw
from PIL.ImageFont import FreeTypeFont

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


class Dot(NamedTuple):
    """A drawn point of a scatter chart, or of its legend: the name of its colour, and its centre."""

    colour: str
    x: float
    y: float


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
        self.dots: list[Dot] = []
        self.regions: list[Region] = []
        self.width, self.height = width, height

    def text(
        self, x: float, y: float, text: str, font: FreeTypeFont, *, align: Align = "middle", mark: int | None = None
    ) -> Box:
        """Draw a line of text whose middle height is ``y``, and remember its glyphs."""
        width, size = font.getlength(text), font.size
        left = round({"left": x, "middle": x - width / 2, "right": x - width}[align])
        self.draw.text((left, round(y)), text, fill=self.ink, font=font, anchor="lm")
        box = Box(left, y - size / 2, left + width, y + size / 2)
        start = 0.0
        for index, char in enumerate(text):
            end = font.getlength(text[: index + 1])
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

    def dot(self, x: float, y: float, colour: str, fill: Rgb) -> Box:
        """Draw a point of 8 pixels, and remember it."""
        box = Box(x - 4, y - 4, x + 4, y + 4)
        self.draw.ellipse(box, fill=fill)
        self.dots.append(Dot(colour, x, y))
        return box

    def line(self, *points: tuple[float, float], width: int = 1, fill: Rgb | None = None) -> None:
        """Draw a line through points."""
        self.draw.line(points, fill=fill or self.ink, width=width)

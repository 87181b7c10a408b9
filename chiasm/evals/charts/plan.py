"""What a chart will show, drawn by lot before anything is painted: size, title, elements, lettering."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from PIL.ImageFont import FreeTypeFont

from chiasm.evals.charts.figure import Figure, Mark, Rgb
from chiasm.evals.charts.fonts import FACES, load_font
from chiasm.evals.charts.words import COLOURS, LABEL_FAMILIES, TOPICS, YEARS

TITLE = -1
FIRST_SERIES = -2
"""What the area of the title, and of a legend's first entry, belongs to in place of an element; further entries count
down."""

CELL = 28
"""Sides are multiples of this, as a processor with patches of 14 and merging of 2 keeps them."""

ALL_KINDS = ("vertical bars", "horizontal bars", "grouped bars", "table", "pie", "line", "scatter", "clip")
"""Every kind of chart, easy ones first."""


@dataclass(frozen=True)
class Scope:
    """How varied charts are; training begins with a narrow one.

    Attributes:
        kinds: which may be drawn.
        min_cells: the shortest side in cells of 28 pixels.
        max_cells: the longest side.
        max_marks: the most elements.
        max_value: the largest number.
        small_share: share of the charts whose numbers stay below 100 though they may be larger.
        families: where labels are from.
        faces: which typefaces are used, one in a chart.
    """

    kinds: tuple[str, ...] = ALL_KINDS
    min_cells: int = 4
    max_cells: int = 12
    max_marks: int = 8
    max_value: int = 999
    small_share: float = 0.6
    families: tuple[str, ...] = tuple(LABEL_FAMILIES)
    faces: tuple[str, ...] = FACES


FULL = Scope()
"""The generator's full range, on which accuracy is measured."""


@dataclass(frozen=True)
class Sketch:
    """What a figure starts from: its size and lettering, the title or ""."""

    width: int
    height: int
    font: FreeTypeFont
    title: str


def draw_sketch(rng: Random, scope: Scope, size: tuple[int, int] | None) -> Sketch:
    """Draw size, lettering and title by lot.

    Args:
        rng: where the lots come from.
        scope: how varied.
        size: (width, height) in cells where the caller wants a certain one.
    """
    columns, rows = size or (rng.randint(scope.min_cells, scope.max_cells) for _ in range(2))
    width, height = columns * CELL, rows * CELL
    font = draw_font(rng, scope, 11 + min(5, min(columns, rows) - 3))
    title = ""
    if height >= 5 * CELL and rng.random() < 0.6:
        title = rng.choice(TOPICS) + (f" {rng.choice(YEARS)}" if rng.random() < 0.5 else "")
        if font.getlength(title) > width - 6:
            title = ""
    return Sketch(width, height, font, title)


def draw_font(rng: Random, scope: Scope, largest: int) -> FreeTypeFont:
    """Draw type size and typeface by lot; a scope of one typeface takes no lot for it."""
    size = rng.randint(11, largest)
    return load_font(size, rng.choice(scope.faces) if len(scope.faces) > 1 else scope.faces[0])


def draw_marks(rng: Random, scope: Scope, count: int, room: float, font: FreeTypeFont) -> list[Mark]:
    """Elements whose labels and values are at most ``room`` pixels wide.

    Labels and values of one chart differ from each other, and so do colours while there are enough.
    """
    families = [name for name in scope.families if _fits(LABEL_FAMILIES[name], count, room, font)]
    labels = rng.sample(LABEL_FAMILIES[rng.choice(families or ["letter"])], count)
    if rng.random() < 0.3:
        labels.sort()
    limit = scope.max_value
    while limit > 99 and font.getlength("8" * len(str(limit))) > room:
        limit = 99
    if limit > 99 and rng.random() < scope.small_share:
        limit = 99
    values = rng.sample(range(1, limit + 1), count)
    colours = draw_colours(rng, count)
    return [Mark(*fields) for fields in zip(labels, values, colours, strict=True)]


def _fits(family: Sequence[str], count: int, room: float, font: FreeTypeFont) -> bool:
    return len(family) >= count and max(font.getlength(label) for label in family) <= room


def draw_colours(rng: Random, count: int) -> list[str]:
    """Names of colours, all different where there are enough, or now and then one for all."""
    if count > len(COLOURS) or rng.random() < 0.2:
        return [rng.choice(list(COLOURS))] * count
    return rng.sample(list(COLOURS), count)


def tone(rng: Random, colour: str) -> Rgb:
    """A shade of a named colour."""
    red, green, blue = (min(255, max(0, part + rng.randint(-14, 14))) for part in COLOURS[colour])
    return red, green, blue


def paint_title(figure: Figure, sketch: Sketch) -> float:
    """Draw the title and return the height at which the chart may begin."""
    if not sketch.title:
        return 3.0
    figure.text(sketch.width / 2, sketch.font.size * 0.8, sketch.title, sketch.font, mark=TITLE)
    return sketch.font.size * 1.5

"""What a chart will show, drawn by lot before anything is painted: size, title, elements, type size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from chiasm.evals.charts.figure import Figure, Mark, Rgb, text_width
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
        families: where labels are from.
    """

    kinds: tuple[str, ...] = ALL_KINDS
    min_cells: int = 4
    max_cells: int = 12
    max_marks: int = 8
    max_value: int = 999
    families: tuple[str, ...] = tuple(LABEL_FAMILIES)


FULL = Scope()
"""The generator's full range, on which accuracy is measured."""


@dataclass(frozen=True)
class Sketch:
    """What a figure starts from: its size and type size, the title or ""."""

    width: int
    height: int
    font_size: int
    title: str


def draw_sketch(rng: Random, scope: Scope, size: tuple[int, int] | None) -> Sketch:
    """Draw size, type size and title by lot.

    Args:
        rng: where the lots come from.
        scope: how varied.
        size: (width, height) in cells where the caller wants a certain one.
    """
    columns, rows = size or (rng.randint(scope.min_cells, scope.max_cells) for _ in range(2))
    width, height = columns * CELL, rows * CELL
    font_size = rng.randint(11, 11 + min(5, (min(columns, rows) - 3)))
    title = ""
    if height >= 5 * CELL and rng.random() < 0.6:
        title = rng.choice(TOPICS) + (f" {rng.choice(YEARS)}" if rng.random() < 0.5 else "")
        if text_width(title, font_size) > width - 6:
            title = ""
    return Sketch(width, height, font_size, title)


def draw_marks(rng: Random, scope: Scope, count: int, room: float, font_size: int) -> list[Mark]:
    """Elements whose labels and values are at most ``room`` pixels wide.

    Labels and values of one chart differ from each other, and so do colours while there are enough.
    """
    families = [name for name in scope.families if _fits(LABEL_FAMILIES[name], count, room, font_size)]
    labels = rng.sample(LABEL_FAMILIES[rng.choice(families or ["letter"])], count)
    if rng.random() < 0.3:
        labels.sort()
    limit = scope.max_value
    while limit > 99 and text_width("8" * len(str(limit)), font_size) > room:
        limit = 99
    if limit > 99 and rng.random() < 0.6:
        limit = 99
    values = rng.sample(range(1, limit + 1), count)
    colours = draw_colours(rng, count)
    return [Mark(*fields) for fields in zip(labels, values, colours, strict=True)]


def _fits(family: Sequence[str], count: int, room: float, font_size: int) -> bool:
    return len(family) >= count and max(text_width(label, font_size) for label in family) <= room


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
    figure.text(sketch.width / 2, sketch.font_size * 0.8, sketch.title, sketch.font_size, mark=TITLE)
    return sketch.font_size * 1.5

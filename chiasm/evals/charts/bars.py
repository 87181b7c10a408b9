"""Bars: standing, lying, and side by side in groups."""

from __future__ import annotations

from random import Random

from PIL.ImageFont import FreeTypeFont

from chiasm.evals.charts.figure import Box, Figure, Mark
from chiasm.evals.charts.plan import FIRST_SERIES, Scope, Sketch, draw_colours, draw_marks, paint_title, tone
from chiasm.evals.charts.words import LABEL_FAMILIES


def draw_vertical(rng: Random, scope: Scope, sketch: Sketch) -> tuple[Figure, list[Mark]]:
    """Standing bars, each with its label below and its value above."""
    font = sketch.font
    room = sketch.width - 8
    most = min(scope.max_marks, int(room / (font.getlength("88") + 5)))
    count = rng.randint(2, max(2, most))
    slot = room / count
    marks = draw_marks(rng, scope, count, slot - 3, font)
    figure = Figure(sketch.width, sketch.height, rng)
    paint_vertical(figure, marks, rng, sketch, max(mark.value for mark in marks))
    return figure, marks


def paint_vertical(figure: Figure, marks: list[Mark], rng: Random, sketch: Sketch, largest: int) -> None:
    """Paint standing bars; ``largest`` is the value at the top of the scale."""
    font, size = sketch.font, sketch.font.size
    top = paint_title(figure, sketch) + size * 1.3
    base = sketch.height - size * 1.5
    slot = (sketch.width - 8) / len(marks)
    fill = rng.uniform(0.5, 0.9)
    for index, mark in enumerate(marks):
        middle = 4 + slot * (index + 0.5)
        height = max(2, (base - top) * mark.value / largest)
        box = Box(middle - slot * fill / 2, base - height, middle + slot * fill / 2, base)
        figure.draw.rectangle(box, fill=tone(rng, mark.colour))
        figure.area(index, box)
        figure.text(middle, box.top - size * 0.65, str(mark.value), font, mark=index)
        figure.text(middle, base + size * 0.75, mark.label, font, mark=index)
    figure.line((3, base), (sketch.width - 3, base))


def draw_horizontal(rng: Random, scope: Scope, sketch: Sketch) -> tuple[Figure, list[Mark]]:
    """Lying bars, each with its label on the left and its value at its end."""
    font, size = sketch.font, sketch.font.size
    top = size * 1.5 if sketch.title else 3.0
    most = min(scope.max_marks, int((sketch.height - top - 4) / (size + 3)))
    count = rng.randint(2, max(2, most))
    marks = draw_marks(rng, scope, count, sketch.width * 0.35, font)
    figure = Figure(sketch.width, sketch.height, rng)
    paint_title(figure, sketch)
    slot = (sketch.height - top - 4) / count
    fill = rng.uniform(0.5, 0.85)
    left = 6 + max(font.getlength(mark.label) for mark in marks)
    length = sketch.width - left - 6 - max(font.getlength(str(mark.value)) for mark in marks)
    largest = max(mark.value for mark in marks)
    for index, mark in enumerate(marks):
        middle = top + slot * (index + 0.5)
        end = left + max(2, length * mark.value / largest)
        box = Box(left, middle - slot * fill / 2, end, middle + slot * fill / 2)
        figure.draw.rectangle(box, fill=tone(rng, mark.colour))
        figure.area(index, box)
        figure.text(end + 3, middle, str(mark.value), font, align="left", mark=index)
        figure.text(left - 3, middle, mark.label, font, align="right", mark=index)
    figure.line((left, top), (left, sketch.height - 3))
    return figure, marks


def draw_grouped(rng: Random, scope: Scope, sketch: Sketch) -> tuple[Figure, list[Mark]]:
    """Two or three series of standing bars in groups, with a legend that tells the series' colours."""
    font = sketch.font
    num_series = rng.randint(2, 3)
    slot = font.getlength("88") + 3
    room = sketch.width - 8
    most = min(4, scope.max_marks // num_series, int(room / (slot * num_series + 6)))
    num_groups = rng.randint(1, max(1, most))
    names = rng.sample(LABEL_FAMILIES["letter"], num_groups + num_series)
    groups, series = names[:num_groups], names[num_groups:]
    colours = draw_colours(rng, num_series)
    while len(set(colours)) < num_series:
        colours = draw_colours(rng, num_series)
    values = rng.sample(range(1, 100), num_groups * num_series)
    marks = [
        Mark(group, values.pop(), colour, name)
        for group in groups
        for name, colour in zip(series, colours, strict=True)
    ]
    figure = Figure(sketch.width, sketch.height, rng)
    top = paint_title(figure, sketch)
    _paint_legend(figure, series, colours, rng, top, font)
    _paint_groups(figure, marks, rng, sketch, top + font.size * 2.6, num_series)
    return figure, marks


def _paint_legend(
    figure: Figure, names: list[str], colours: list[str], rng: Random, top: float, font: FreeTypeFont
) -> None:
    size = font.size
    step = (figure.width - 8) / len(names)
    for index, (name, colour) in enumerate(zip(names, colours, strict=True)):
        left = 6 + index * step
        figure.draw.rectangle((left, top + 2, left + size * 0.7, top + 2 + size * 0.7), fill=tone(rng, colour))
        figure.text(left + size, top + 2 + size * 0.35, name, font, align="left", mark=FIRST_SERIES - index)


def _paint_groups(
    figure: Figure, marks: list[Mark], rng: Random, sketch: Sketch, top: float, num_series: int
) -> None:
    font, size = sketch.font, sketch.font.size
    base = sketch.height - size * 1.5
    num_groups = len(marks) // num_series
    group_width = (sketch.width - 8) / num_groups
    slot = (group_width - 6) / num_series
    largest = max(mark.value for mark in marks)
    for index, mark in enumerate(marks):
        group, place = divmod(index, num_series)
        left = 4 + group * group_width + 3 + place * slot
        height = max(2, (base - top) * mark.value / largest)
        box = Box(left, base - height, left + slot - 1, base)
        figure.draw.rectangle(box, fill=tone(rng, mark.colour))
        figure.area(index, box)
        figure.text(left + slot / 2, box.top - size * 0.65, str(mark.value), font, mark=index)
        if place == 0:
            figure.text(4 + (group + 0.5) * group_width, base + size * 0.75, mark.label, font)
    figure.line((3, base), (sketch.width - 3, base))

"""Tables, pies, lines and scattered points."""

from __future__ import annotations

import math
from dataclasses import replace
from random import Random

from PIL.ImageFont import FreeTypeFont

from chiasm.evals.charts.figure import Box, Figure, Mark
from chiasm.evals.charts.plan import Scope, Sketch, draw_colours, draw_marks, paint_title, tone


def draw_table(rng: Random, scope: Scope, sketch: Sketch) -> tuple[Figure, list[Mark]]:
    """Rows of a label and a value."""
    font, size = sketch.font, sketch.font.size
    top = size * 1.5 if sketch.title else 3.0
    most = min(scope.max_marks, int((sketch.height - top - 4) / (size + 4)))
    count = rng.randint(2, max(2, most))
    marks = [replace(mark, colour="") for mark in draw_marks(rng, scope, count, sketch.width * 0.45, font)]
    figure = Figure(sketch.width, sketch.height, rng)
    paint_title(figure, sketch)
    row = min((sketch.height - top - 4) / count, size * rng.uniform(1.3, 2.6))
    left, right = 3.0, sketch.width - 4.0
    border = left + (right - left) * rng.uniform(0.45, 0.6)
    for index, mark in enumerate(marks):
        middle = top + row * (index + 0.5)
        figure.area(index, Box(left, middle - row / 2, right, middle + row / 2))
        figure.text(left + 4, middle, mark.label, font, align="left", mark=index)
        figure.text(right - 4, middle, str(mark.value), font, align="right", mark=index)
        figure.line((left, middle + row / 2), (right, middle + row / 2))
    for x in (left, border, right):
        figure.line((x, top), (x, top + row * count))
    figure.line((left, top), (right, top))
    return figure, marks


def draw_pie(rng: Random, scope: Scope, sketch: Sketch) -> tuple[Figure, list[Mark]]:
    """Slices with label and value on them, none of them tiny."""
    font = sketch.font
    top = font.size * 1.5 if sketch.title else 3.0
    radius = min(sketch.width, sketch.height - top) / 2 - 3
    most = max(2, min(scope.max_marks, 6, int(radius / 14)))
    count = rng.randint(2, most)
    marks = draw_marks(rng, scope, count, radius * 0.7, font)
    while len({mark.colour for mark in marks}) < count:
        marks = [replace(m, colour=c) for m, c in zip(marks, draw_colours(rng, count), strict=True)]
    low = rng.randint(10, 30)
    values = rng.sample(range(low, min(99, low * 5)), count)
    marks = [replace(mark, value=value) for mark, value in zip(marks, values, strict=True)]
    figure = Figure(sketch.width, sketch.height, rng)
    paint_title(figure, sketch)
    middle = (sketch.width / 2, top + (sketch.height - top) / 2)
    _paint_slices(figure, marks, rng, middle, radius, font)
    return figure, marks


def _paint_slices(
    figure: Figure, marks: list[Mark], rng: Random, middle: tuple[float, float], radius: float, font: FreeTypeFont
) -> None:
    (x, y), size = middle, font.size
    ends = [rng.uniform(0, 360)]
    total = sum(mark.value for mark in marks)
    figure.ink = (0, 0, 0)
    for mark in marks:
        ends.append(ends[-1] + 360 * mark.value / total)
        light = tuple((part + 255) // 2 for part in tone(rng, mark.colour))
        disc = (x - radius, y - radius, x + radius, y + radius)
        figure.draw.pieslice(disc, ends[-2], ends[-1], fill=light, outline=figure.background)
    for index, mark in enumerate(marks):
        angle = math.radians((ends[index] + ends[index + 1]) / 2)
        at_x, at_y = x + 0.62 * radius * math.cos(angle), y + 0.62 * radius * math.sin(angle)
        figure.area(index, Box(at_x - radius / 4, at_y - radius / 4, at_x + radius / 4, at_y + radius / 4))
        figure.text(at_x, at_y - size * 0.55, mark.label, font, mark=index)
        figure.text(at_x, at_y + size * 0.55, str(mark.value), font, mark=index)


def draw_line(rng: Random, scope: Scope, sketch: Sketch) -> tuple[Figure, list[Mark]]:
    """One line of points, each with its value above and its label on the axis below."""
    font, size = sketch.font, sketch.font.size
    room = sketch.width - 8
    most = min(scope.max_marks, int(room / (font.getlength("88") + 6)))
    count = rng.randint(2, max(2, most))
    slot = room / count
    marks = [replace(mark, colour="") for mark in draw_marks(rng, scope, count, slot - 3, font)]
    figure = Figure(sketch.width, sketch.height, rng)
    top = paint_title(figure, sketch) + size * 1.5
    base = sketch.height - size * 1.6
    paint = tone(rng, draw_colours(rng, 1)[0])
    largest = max(mark.value for mark in marks)
    points = [
        (4 + slot * (index + 0.5), base - 4 - (base - 4 - top) * mark.value / largest)
        for index, mark in enumerate(marks)
    ]
    figure.line(*points, width=rng.randint(1, 2), fill=paint)
    for index, (mark, (x, y)) in enumerate(zip(marks, points, strict=True)):
        figure.draw.ellipse((x - 3, y - 3, x + 3, y + 3), fill=paint)
        figure.area(index, Box(x - slot / 3, y, x + slot / 3, base))
        figure.text(x, y - size * 0.85, str(mark.value), font, mark=index)
        figure.text(x, base + size * 0.85, mark.label, font, mark=index)
    figure.line((3, base), (sketch.width - 3, base))
    return figure, marks


def draw_scatter(rng: Random, scope: Scope, sketch: Sketch) -> tuple[Figure, list[Mark]]:
    """Points in groups of a colour; the value of a group is how many points it has, and a legend names it."""
    font, size = sketch.font, sketch.font.size
    count = rng.randint(2, 3)
    labels = [mark.label for mark in draw_marks(rng, scope, count, (sketch.width - 8) / count - size * 1.2, font)]
    colours = draw_colours(rng, count)
    while len(set(colours)) < count:
        colours = draw_colours(rng, count)
    numbers = rng.sample(range(1, 8), count)
    marks = [Mark(*fields) for fields in zip(labels, numbers, colours, strict=True)]
    figure = Figure(sketch.width, sketch.height, rng)
    top = paint_title(figure, sketch) + size * 1.6
    step = (sketch.width - 8) / count
    places = _places(rng, Box(12, top + 6, sketch.width - 8, sketch.height - 12), sum(numbers))
    for index, mark in enumerate(marks):
        paint = tone(rng, mark.colour)
        left, y = 5 + index * step, top - size * 0.7
        figure.dot(left + 4, y, mark.colour, paint)
        figure.text(left + 11, y, mark.label, font, align="left", mark=index)
        for _ in range(mark.value):
            x, y = places.pop()
            figure.area(index, figure.dot(x, y, mark.colour, paint))
    figure.line((6, top), (6, sketch.height - 6), (sketch.width - 4, sketch.height - 6))
    return figure, marks


def _places(rng: Random, box: Box, count: int) -> list[tuple[float, float]]:
    """Places that do not overlap, on a jittered lattice."""
    pitch = 13.0
    while (columns := int((box.right - box.left) / pitch)) * (rows := int((box.bottom - box.top) / pitch)) < count:
        pitch -= 0.5
    cells = rng.sample(range(columns * rows), count)
    slack = (pitch - 9) / 2
    return [
        (
            box.left + (cell % columns + 0.5) * pitch + rng.uniform(-slack, slack),
            box.top + (cell // columns + 0.5) * pitch + rng.uniform(-slack, slack),
        )
        for cell in cells
    ]

"""Charts and their questions by seed; the same seed gives the same pixels and words in every run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from PIL import Image

from chiasm.evals.charts.bars import draw_grouped, draw_horizontal, draw_vertical
from chiasm.evals.charts.clips import MAX_FRAMES, draw_clip
from chiasm.evals.charts.figure import Figure, Mark
from chiasm.evals.charts.others import draw_line, draw_pie, draw_scatter, draw_table
from chiasm.evals.charts.plan import FULL, Scope, Sketch, draw_sketch
from chiasm.evals.charts.questions import Subject, ask

_FIRST_HELD_OUT = 1 << 40
"""Seeds from here on are for measuring only; training draws from those below."""

_Draw = Callable[[Random, Scope, Sketch], tuple[Figure, list[Mark]]]
MAX_CLIP_CELLS = 6
"""Frames are small, because a clip has several."""
_DRAW: dict[str, _Draw] = {
    "vertical bars": draw_vertical,
    "horizontal bars": draw_horizontal,
    "grouped bars": draw_grouped,
    "table": draw_table,
    "pie": draw_pie,
    "line": draw_line,
    "scatter": draw_scatter,
}


@dataclass(frozen=True)
class Chart:
    """A drawn chart, or the frames of a clip, and all that is known about it."""

    figures: tuple[Figure, ...]
    subject: Subject


@dataclass(frozen=True)
class Example:
    """One question about one chart.

    Attributes:
        kind: of the chart.
        images: one picture, or the frames of a clip.
        question: in words.
        answer: in words or digits.
        question_kind: what sort of question it is.
    """

    kind: str
    images: tuple[Image.Image, ...]
    question: str
    answer: str
    question_kind: str


def train_seed(index: int) -> int:
    """The seed of a training example; never one of ``held_out_seed``."""
    if not 0 <= index < _FIRST_HELD_OUT:
        raise ValueError(f"a training example has an index from 0 to {_FIRST_HELD_OUT - 1}, not {index}")
    return index


def held_out_seed(index: int) -> int:
    """The seed of an example for measuring; never one of ``train_seed``."""
    if index < 0:
        raise ValueError(f"a held-out example has an index of at least 0, not {index}")
    return _FIRST_HELD_OUT + index


def make_chart(
    rng: Random, scope: Scope = FULL, size: tuple[int, int] | None = None, num_frames: int | None = None
) -> Chart:
    """Draw a chart.

    Args:
        rng: where the lots come from.
        scope: how varied.
        size: (width, height) in cells of 28 pixels; None draws it by lot.
        num_frames: of a clip; None draws it by lot.
    """
    kind = rng.choice(scope.kinds)
    if kind == "clip":
        small = replace(scope, max_cells=max(scope.min_cells, min(scope.max_cells, MAX_CLIP_CELLS)))
        sketch = draw_sketch(rng, small, size)
        figures, before, after = draw_clip(rng, scope, sketch, num_frames or rng.randint(2, MAX_FRAMES))
        return Chart(figures, Subject(kind, sketch.title, after, before, len(figures)))
    sketch = draw_sketch(rng, scope, size)
    figure, marks = _DRAW[kind](rng, scope, sketch)
    return Chart((figure,), Subject(kind, sketch.title, marks))


def make_example(seed: int, scope: Scope = FULL) -> Example:
    """Draw a chart and ask one question about it."""
    rng = Random(seed)
    chart = make_chart(rng, scope)
    question = ask(chart.subject, rng)[0]
    return Example(
        chart.subject.kind,
        tuple(figure.image for figure in chart.figures),
        question.text,
        question.answer,
        question.kind,
    )

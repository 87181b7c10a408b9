"""Short clips: a few frames of standing bars in which one of them grows."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from chiasm.evals.charts.bars import paint_vertical
from chiasm.evals.charts.figure import Figure, Mark
from chiasm.evals.charts.plan import Scope, Sketch, draw_marks

MAX_FRAMES = 3


def draw_clip(
    rng: Random, scope: Scope, sketch: Sketch, num_frames: int
) -> tuple[tuple[Figure, ...], list[Mark], list[Mark]]:
    """Frames, and the elements as they are in the first and in the last of them."""
    font = sketch.font
    room = sketch.width - 8
    most = min(scope.max_marks, 5, int(room / (font.getlength("88") + 5)))
    count = rng.randint(2, max(2, most))
    before = draw_marks(rng, replace(scope, max_value=60), count, room / count - 3, font)
    grown = rng.randrange(count)
    others = {mark.value for mark in before}
    low = before[grown].value + 8
    after = list(before)
    after[grown] = replace(before[grown], value=rng.choice([v for v in range(low, 100) if v not in others]))
    seed = rng.random()
    frames = []
    for number in range(num_frames):
        now = list(before)
        step = (after[grown].value - before[grown].value) * number // (num_frames - 1)
        now[grown] = replace(before[grown], value=before[grown].value + step)
        own = Random(seed)  # the same tones in all frames
        figure = Figure(sketch.width, sketch.height, own)
        paint_vertical(figure, now, own, sketch, 100)
        frames.append(figure)
    return tuple(frames), before, after

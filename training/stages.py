"""What is trained when: first to read, then to answer, then ever more kinds of charts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from chiasm.evals.charts.fonts import PLAIN
from chiasm.evals.charts.plan import ALL_KINDS, FULL, Scope
from training.stream import Recipe

_SMALL = Scope(
    ("vertical bars", "horizontal bars"), min_cells=4, max_cells=5, max_marks=5, max_value=99, faces=(PLAIN,)
)
_BARS = replace(_SMALL, kinds=("vertical bars", "horizontal bars", "grouped bars"), max_cells=6, max_marks=6)
_MORE = replace(_BARS, kinds=(*_BARS.kinds, "table", "pie", "line"), max_cells=7, max_marks=8)
_MOST = replace(_MORE, kinds=tuple(kind for kind in ALL_KINDS if kind != "clip"), max_cells=8, max_value=999)
_FULL = replace(FULL, faces=(PLAIN,))
_HARDER = replace(
    FULL, kinds=(*ALL_KINDS, "scatter", "scatter", "horizontal bars", "table", "line"), small_share=0.35
)
_FOUR = Recipe(num_questions=4, glyph_share=0.05, legends="followed")
_FINER = replace(_FOUR, look_ups=0.7, finer=True)
_FINEST = replace(_FINER, scope=_HARDER, num_questions=8, yes_or_no=1.5, dots=True)


@dataclass(frozen=True)
class Stage:
    """A stretch of training.

    Attributes:
        name: for the log.
        num_steps: its length.
        recipe: what batches hold.
        dense_weight: of the dense targets in the loss.
        snap: share of text lines that are on the lattice, from its first to its last step.
        help: weight of the scaffold, from its first to its last step.
        rate: factor of the learning rates, from its first to its last step.
    """

    name: str
    num_steps: int
    recipe: Recipe
    dense_weight: float = 0.3
    snap: tuple[float, float] = (0.0, 0.0)
    help: tuple[float, float] = (0.0, 0.0)
    rate: tuple[float, float] = (1.0, 1.0)


STAGES = (
    Stage("glyphs", 300, Recipe(_SMALL, num_questions=0, glyph_share=1.0), 1.0, snap=(1.0, 0.0), rate=(1.0, 0.4)),
    Stage("facts", 1300, Recipe(_SMALL, num_questions=0, glyph_share=0.3), 1.0, rate=(0.4, 0.35)),
    Stage("more facts", 900, Recipe(_MORE, num_questions=0, glyph_share=0.2), 1.0, rate=(0.35, 0.3)),
    Stage("look-ups", 600, Recipe(_SMALL, look_ups=2.0, glyph_share=0.1), 1.0, help=(2.0, 0.92), rate=(0.35, 0.32)),
    Stage(
        "bars",
        600,
        Recipe(_BARS, look_ups=1.5, glyph_share=0.1, legends="named"),
        1.0,
        help=(0.92, 0.0),
        rate=(0.32, 0.28),
    ),
    Stage("more", 300, Recipe(_MORE, glyph_share=0.1, legends="named"), 1.0, rate=(0.28, 0.2725)),
    Stage("legends", 500, replace(_FOUR, scope=_MORE, glyph_share=0.1), 1.0, rate=(0.27, 0.2422)),
    Stage("pairs", 400, replace(_FINER, scope=_MORE, glyph_share=0.1), 1.0, rate=(0.242, 0.22)),
    Stage("most", 100, replace(_FINER, scope=_MOST, glyph_share=0.1), 0.5, rate=(0.22, 0.2162)),
    Stage(
        "full facts", 2800, replace(_FINER, scope=_FULL, num_questions=0, glyph_share=0.1), 1.0, rate=(0.22, 0.1325)
    ),
    Stage("full", 400, replace(_FINER, scope=_FULL), 0.5, rate=(0.15, 0.14)),
    Stage("asked more", 600, replace(_FINER, scope=_FULL, num_questions=6, yes_or_no=2.5), 0.5, rate=(0.14, 0.12304)),
    Stage("read again", 2000, replace(_FINER, scope=_FULL, num_questions=0), 1.0, rate=(0.12, 0.08)),
    Stage("cooler", 2700, replace(_FINER, scope=_FULL, num_questions=8, yes_or_no=2.0), 0.7, rate=(0.09, 0.001)),
    Stage("faces", 2500, replace(_FINEST, num_questions=0, glyph_share=0.15), 1.0, rate=(0.15, 0.11)),
    Stage("asked again", 4000, _FINEST, 0.7, rate=(0.11, 0.06)),
    Stage("cooler again", 4500, _FINEST, 0.7, rate=(0.06, 0.001)),
    Stage("end", 2400, replace(_FINEST, yes_or_no=1.0, extremes=3.0), 0.7, rate=(0.045, 0.001)),
)
WARM_UP = 60


@dataclass(frozen=True)
class Now:
    """What holds at one step."""

    stage: Stage
    recipe: Recipe
    rate: float
    help: float


def now(step: int, stages: tuple[Stage, ...] = STAGES) -> Now | None:
    """The stage of a step with what changes within it; None after the last."""
    begin = 0
    for stage in stages:
        if step < begin + stage.num_steps:
            share = (step - begin) / stage.num_steps
            snap = stage.snap[0] + (stage.snap[1] - stage.snap[0]) * share
            rate = stage.rate[0] + (stage.rate[1] - stage.rate[0]) * share
            helping = stage.help[0] + (stage.help[1] - stage.help[0]) * share
            recipe = replace(stage.recipe, snap_share=snap)
            return Now(stage, recipe, rate * min(1.0, (step + 1) / WARM_UP), helping)
        begin += stage.num_steps
    return None


def cooled(step: int, num_steps: int) -> tuple[Stage, ...]:
    """Stages that end soon: from ``step`` on the current one with rates that fall to almost nothing."""
    begin, kept = 0, []
    for stage in STAGES:
        if step < begin + stage.num_steps:
            at = now(step)
            assert at is not None
            kept.append(replace(stage, num_steps=step - begin))
            kept.append(
                replace(stage, name="cool", num_steps=num_steps, help=(0.0, 0.0), rate=(at.rate, 0.02 * at.rate))
            )
            return tuple(kept)
        kept.append(stage)
        begin += stage.num_steps
    return STAGES

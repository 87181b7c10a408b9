"""What the core tells of its steps while somebody watches; it costs nothing while nobody does."""

from __future__ import annotations

import time
from collections.abc import Callable

from chiasm.schema.output import EngineStats
from chiasm.schema.plan import StepPlan, StepResult, VisionStep
from chiasm.schema.steps import EncoderBegan, StepNews, StepsEnded, UnitRows

_FLUSH_SECONDS = 0.1  # steps without vision work are told of together: there may be hundreds in a second


class StepFeed:
    """Turns plans and results into news.

    Args:
        num_ranks: of the encoder.
        num_stages: of a pass through the tower.
        tell: is given the news.
    """

    def __init__(self, num_ranks: int, num_stages: int, tell: Callable[[StepNews], None]) -> None:
        self._num_ranks = num_ranks
        self._num_stages = num_stages
        self._tell = tell
        self._num_steps = 0
        self._compute_seconds = 0.0
        self._told = time.perf_counter()

    def begin(self, plan: StepPlan) -> None:
        """A step is about to be executed."""
        vision = plan.vision
        if vision is not None:
            news = EncoderBegan(
                step=plan.step,
                time=time.perf_counter(),
                reason=vision.plan.reason,
                predicted_seconds=vision.predicted_seconds,
                start=vision.start,
                stop=vision.stop,
                num_stages=self._num_stages,
                lanes=_lanes(vision, self._num_ranks),
            )
            self._tell(news)

    def end(self, plan: StepPlan, result: StepResult, stats: EngineStats, *, is_idle: bool) -> None:
        """A step has been applied.

        Args:
            plan: of it.
            result: of it.
            stats: after it.
            is_idle: whether no other step follows at once.
        """
        self._num_steps += 1
        self._compute_seconds += result.compute_seconds
        now = time.perf_counter()
        if plan.vision is None and not is_idle and now - self._told < _FLUSH_SECONDS:
            return
        ended = StepsEnded(now, self._num_steps, self._compute_seconds, stats)
        if plan.vision is not None:
            ended = StepsEnded(
                now, self._num_steps, self._compute_seconds, stats,
                plan.step, result.encoder_seconds, result.encoder_makespan,
            )  # fmt: skip
        self._tell(ended)
        self._num_steps, self._compute_seconds, self._told = 0, 0.0, now


def _lanes(vision: VisionStep, num_ranks: int) -> tuple[tuple[UnitRows, ...], ...]:
    """What each rank encodes; all rows of every unit where each computes its heads of them."""
    lanes: list[list[UnitRows]] = [[] for _ in range(num_ranks)]
    for assignment in vision.plan.assignments:
        key, num_rows = assignment.unit.key, assignment.unit.num_rows
        if not assignment.shares:
            for lane in lanes:
                lane.append(UnitRows(key, 0, num_rows, num_rows))
        for share in assignment.shares:
            lanes[share.rank].append(UnitRows(key, share.start, share.stop, num_rows))
    return tuple(tuple(lane) for lane in lanes)

"""When things happened to each request. It looks on as plans go by and decides nothing."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from chiasm.schema.output import RequestTimes, SequenceDelta
from chiasm.schema.plan import StepPlan
from chiasm.schema.request import EngineRequest
from chiasm.vision.frames import PlacedUnits


@dataclass
class _Clock:
    """Times of one sequence by ``time.perf_counter``.

    Attributes:
        units: of its media, by position.
        lacking: keys of units that were not encoded since it came.
        added: when it came.
        started: when the first of its prompt was computed.
        encode_start: when a unit that it reads was begun first.
        encode_end: when the last one so far was through.
        encode_seconds: of the steps that encoded any.
        is_told: whether the frontend has its times.
    """

    units: PlacedUnits
    lacking: set[str]
    added: float
    started: float | None = None
    encode_start: float | None = None
    encode_end: float | None = None
    encode_seconds: float = 0.0
    is_told: bool = False


class RequestClocks:
    """Times of the sequences that the core knows, and how much was encoded before it was read.

    Args:
        num_stages: of a pass through the tower.

    Attributes:
        units_ahead: units so far that were through the encoder before a step that reads them.
    """

    def __init__(self, num_stages: int) -> None:
        self.units_ahead = 0
        self._num_stages = num_stages
        self._clocks: dict[str, _Clock] = {}
        self._began = 0.0

    def add(self, request: EngineRequest) -> None:
        """A sequence has come."""
        keys = {unit.key for item in request.items for unit in item.units}
        self._clocks[request.request_id] = _Clock(PlacedUnits(request.items), keys, time.perf_counter())

    def begin(self, plan: StepPlan) -> None:
        """A step is about to be executed."""
        self._began = time.perf_counter()
        for started in plan.started:
            clock = self._clocks[started.request_id]
            clock.started = clock.started or self._began

    def end(self, plan: StepPlan) -> None:
        """The step has been executed."""
        vision = plan.vision
        if vision is None:
            return
        keys, now = {unit.key for unit in vision.plan.units}, time.perf_counter()
        is_through = vision.stop == self._num_stages
        for clock in self._clocks.values():
            if not clock.lacking.isdisjoint(keys):
                clock.encode_start = clock.encode_start or self._began
                clock.encode_end = now
                clock.encode_seconds += now - self._began
                clock.lacking -= keys if is_through else set()
        if is_through:
            self.units_ahead += len(keys - self._read_by(plan))

    def stamp(self, deltas: Sequence[SequenceDelta]) -> tuple[SequenceDelta, ...]:
        """Put its times into the first delta of each sequence that has a token, and forget those that have ended."""
        return tuple(self._stamped(deltas))

    def _stamped(self, deltas: Sequence[SequenceDelta]) -> Iterable[SequenceDelta]:
        for delta in deltas:
            clock = self._clocks[delta.request_id]
            if delta.finish_reason is not None:
                del self._clocks[delta.request_id]
            if delta.token_ids and not clock.is_told and clock.started is not None:
                clock.is_told = True
                times = RequestTimes(
                    added=clock.added,
                    started=clock.started,
                    first_token=time.perf_counter(),
                    encode_start=clock.encode_start,
                    encode_end=clock.encode_end,
                    encode_seconds=clock.encode_seconds,
                )
                yield msgspec.structs.replace(delta, times=times)
            else:
                yield delta

    def _read_by(self, plan: StepPlan) -> set[str]:
        """Keys of the units that a step's tokens read."""
        read: set[str] = set()
        for one in plan.scheduled:
            start = one.num_computed_tokens
            units = self._clocks[one.request_id].units.between(start, start + one.num_new_tokens)
            read.update(placed.unit.key for placed in units)
        return read

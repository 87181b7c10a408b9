"""What the core tells of its steps while somebody watches, and how the frontend passes it on with names."""

from __future__ import annotations

import msgspec

from chiasm.schema.media import Modality
from chiasm.schema.output import EngineStats


class UnitRows(msgspec.Struct, frozen=True):
    """The rows of a unit that one rank encodes.

    Attributes:
        key: of the unit.
        start: its first row.
        stop: one past its last row.
        num_rows: that the unit has.
    """

    key: str
    start: int
    stop: int
    num_rows: int


class EncoderBegan(msgspec.Struct, frozen=True, tag=True):
    """A step with vision work begins.

    Attributes:
        step: its number.
        time: by ``time.perf_counter``.
        reason: of the plan.
        predicted_seconds: of this step's part of the plan.
        start: stages of the passes through the tower that are done before.
        stop: and after it.
        num_stages: that a pass has.
        lanes: what each rank encodes.
    """

    step: int
    time: float
    reason: str
    predicted_seconds: float
    start: int
    stop: int
    num_stages: int
    lanes: tuple[tuple[UnitRows, ...], ...]


class StepsEnded(msgspec.Struct, frozen=True, tag=True):
    """A step with vision work has ended, or some without have.

    Attributes:
        time: when the last of them ended, by ``time.perf_counter``.
        num_steps: how many.
        compute_seconds: of the language model in them, together.
        stats: after them.
        encoder_step: the number of the one with vision work; None where there was none.
        encoder_seconds: each rank's part in it.
        encoder_makespan: until every rank was through.
    """

    time: float
    num_steps: int
    compute_seconds: float
    stats: EngineStats
    encoder_step: int | None = None
    encoder_seconds: tuple[float, ...] = ()
    encoder_makespan: float = 0.0


StepNews = EncoderBegan | StepsEnded


class UnitName(msgspec.Struct, frozen=True):
    """What a unit is to the one who asked for it.

    Attributes:
        request_id: a request that reads it.
        modality: of its item.
        item: which of the prompt's items of this modality, counted from 0.
        unit: which unit of the item, counted from 0.
        num_units: that the item has.
    """

    request_id: str
    modality: Modality
    item: int
    unit: int
    num_units: int


class NamedNews(msgspec.Struct, frozen=True):
    """News of steps with the names of the units in it.

    Attributes:
        news: as the core told it.
        names: by key; a unit whose request has ended meanwhile has none.
    """

    news: StepNews
    names: dict[str, UnitName] = {}

"""What a profile of the engine tells; the traces themselves are files that the ranks write."""

from __future__ import annotations

from typing import Literal

import msgspec

Phase = Literal["vision", "language model", "sampling"]
"""What a rank does in a step."""


class OperatorTime(msgspec.Struct, frozen=True):
    """All calls of one operator on a rank, without what it calls itself.

    Attributes:
        name: torch's.
        calls: how often.
        cpu_seconds: on the thread that runs the steps.
        device_seconds: on a GPU; 0 without one.
    """

    name: str
    calls: int
    cpu_seconds: float
    device_seconds: float


class RankProfile(msgspec.Struct, frozen=True):
    """One rank's part.

    Attributes:
        rank: which.
        trace: the file that it wrote, in the Chrome trace format.
        phase_seconds: by phase, on the thread that runs the steps; a GPU may go on beside it.
        operators: the costliest first, on a GPU by what they take there.
    """

    rank: int
    trace: str
    phase_seconds: dict[Phase, float]
    operators: tuple[OperatorTime, ...]


class EngineProfile(msgspec.Struct, frozen=True):
    """What the engine did between two moments.

    Attributes:
        num_steps: of the engine.
        step_seconds: total of these, as the core sees them.
        schedule_seconds: of it, deciding on the steps and taking in their results.
        ranks: each rank's part, in order.
    """

    num_steps: int
    step_seconds: float
    schedule_seconds: float
    ranks: tuple[RankProfile, ...]

    def rest_seconds(self, rank: RankProfile) -> float:
        """Of the steps, in no phase of this rank: messages, bookkeeping, and waiting for other ranks."""
        return self.step_seconds - self.schedule_seconds - sum(rank.phase_seconds.values())

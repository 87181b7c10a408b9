"""What the core asks of an executor."""

from __future__ import annotations

from typing import Protocol

from chiasm.schema.facts import EncoderRates
from chiasm.schema.plan import StepPlan, StepResult
from chiasm.schema.wire import RankInfo


class Executor(Protocol):
    """The ranks, as one.

    Every method raises ``EngineDeadError`` once a rank has died.
    """

    @property
    def rank_pids(self) -> tuple[int, ...]:
        """Process ids of the ranks."""

    def load(self) -> list[RankInfo]:
        """Have every rank load the model; one entry per rank.

        Raises:
            UserError: if the model or a setting is at fault.
        """

    def measure_encoder(self) -> EncoderRates:
        """Have the ranks measure how fast the encoder is; before ``allocate``, while memory is free."""

    def allocate(self, num_blocks: int) -> None:
        """Have every rank make its KV cache."""

    def execute(self, plan: StepPlan) -> StepResult:
        """Have every rank obey a plan; returns what rank 0 reports."""

    def check(self) -> None:
        """Look whether every rank is alive; called while there is nothing to do."""

    def close(self) -> None:
        """End the ranks. May be called twice."""

"""What the core asks of an executor."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from chiasm.schema.facts import EncoderRates
from chiasm.schema.plan import StepPlan, StepResult
from chiasm.schema.profile import RankProfile
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

    def start_profile(self) -> None:
        """Have every rank record what it computes; between two steps, like ``stop_profile``."""

    def stop_profile(self, folder: Path) -> list[RankProfile]:
        """Have every rank end that and write what it recorded; one entry per rank.

        Raises:
            UserError: if one can't write. All have ended it all the same.
        """

    def check(self) -> None:
        """Look whether every rank is alive; called while there is nothing to do."""

    def close(self) -> None:
        """End the ranks. May be called twice."""

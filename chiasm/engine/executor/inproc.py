"""One rank in the core's own process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from chiasm.config.engine import EngineConfig
from chiasm.errors import EngineDeadError
from chiasm.schema.facts import EncoderRates
from chiasm.schema.plan import StepPlan, StepResult
from chiasm.schema.profile import RankProfile
from chiasm.schema.wire import RankInfo

if TYPE_CHECKING:
    from chiasm.engine.runner.runner import Runner
    from chiasm.engine.runner.spin_guard import SpinGuard


class InprocExecutor:
    """Calls a runner directly; torch is imported when the model is loaded."""

    def __init__(self, config: EngineConfig) -> None:
        assert config.tensor_parallel_size == 1, config.tensor_parallel_size
        self._config = config
        self._runner: Runner | None = None
        self._spin_guard: SpinGuard | None = None

    @property
    def rank_pids(self) -> tuple[int, ...]:
        """This process."""
        return (os.getpid(),)

    def load(self) -> list[RankInfo]:
        """Load the model here."""
        from chiasm.engine.runner.spin_guard import SpinGuard
        from chiasm.engine.runner.start import start_runner

        self._runner = start_runner(self._config, rank=0, size=1)
        self._spin_guard = SpinGuard()
        return [self._runner.info()]

    def measure_encoder(self) -> EncoderRates:
        """Measure here."""
        return self._live_runner().measure_encoder()

    def allocate(self, num_blocks: int) -> None:
        """Make the KV cache here."""
        self._live_runner().allocate(num_blocks)

    def execute(self, plan: StepPlan) -> StepResult:
        """Obey a plan here."""
        return self._live_runner().execute(plan)

    def start_profile(self) -> None:
        """Record here."""
        self._live_runner().profiler.start()

    def stop_profile(self, folder: Path) -> list[RankProfile]:
        """Write what was recorded here."""
        return [self._live_runner().profiler.stop(folder)]

    def check(self) -> None:
        """Fail if it was closed."""
        self._live_runner()

    def close(self) -> None:
        """Let go of the model."""
        self._runner = None
        if self._spin_guard is not None:
            self._spin_guard.close()

    def _live_runner(self) -> Runner:
        if self._runner is None:
            raise EngineDeadError("the engine is closed.")
        return self._runner

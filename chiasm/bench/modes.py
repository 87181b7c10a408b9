"""``chiasm bench modes``: a server in each mode of the encoder in turn, under one load.

A round has a run of each mode, and the next round begins with another mode, so that a machine that grows slower or
faster is unfair to none. Every run has a server of its own: on a GPU three would not fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from chiasm.bench.results import Group
from chiasm.bench.serve.command import ServeBenchmark
from chiasm.bench.serve.metrics import summarise
from chiasm.bench.serve.result import result_fields, run_fields
from chiasm.bench.server import ServerProcess
from chiasm.errors import UserError

MODES = ("weights", "data", "auto")


@dataclass(frozen=True)
class ModesBenchmark:
    """A comparison.

    Attributes:
        arguments: of ``chiasm serve``, the model first, but for the mode and the port.
        benchmark: the load; its ``base_url`` is replaced.
        modes: of the encoder.
        rounds: runs of each mode.
        start_seconds: how long a server may take to be ready.
    """

    arguments: Sequence[str]
    benchmark: ServeBenchmark
    modes: Sequence[str] = MODES
    rounds: int = 3
    start_seconds: float = 1800.0

    def run(self, tell: Callable[[str], None], keep: Callable[[str, int, Mapping[str, Any]], None]) -> list[Group]:
        """Run all.

        Args:
            tell: is given a line before each run.
            keep: is given the mode, the round, and the result of each run as soon as there is one.

        Raises:
            UserError: if a server doesn't start, or a request fails.
        """
        runs: dict[str, list[Mapping[str, Any]]] = {mode: [] for mode in self.modes}
        for number in range(self.rounds):
            first = number % len(self.modes)
            for mode in (*self.modes[first:], *self.modes[:first]):
                tell(f"round {number + 1} of {self.rounds}: --mm-encoder-tp-mode {mode}")
                result = self._run_once(mode)
                keep(mode, number, result)
                runs[mode].append(result)
        return [Group(mode, results) for mode, results in runs.items()]

    def _run_once(self, mode: str) -> dict[str, Any]:
        with ServerProcess([*self.arguments, "--mm-encoder-tp-mode", mode], self.start_seconds) as server:
            began = datetime.now(UTC).astimezone()
            load, outcomes, seconds = replace(self.benchmark, base_url=server.url).run()
        if len(outcomes) < len(load.samples):
            raise KeyboardInterrupt
        failed = [outcome.error for outcome in outcomes if not outcome.succeeded]
        if failed:
            raise UserError(f"{len(failed)} requests fail with --mm-encoder-tp-mode {mode}: {failed[0]}")
        return run_fields(load, began, mode, {}) | result_fields(
            summarise(outcomes, seconds), outcomes, detailed=True
        )

"""Real ranks that hold a model and are given nothing but vision plans: the encoder as the engine runs it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from chiasm.bench.workloads import Batch, unit_grids, unit_of
from chiasm.config.engine import EngineConfig
from chiasm.dist.runtime_dir import create_runtime_dir, remove_runtime_dir
from chiasm.engine.executor.multiproc import MultiprocExecutor
from chiasm.errors import EngineDeadError
from chiasm.multimodal.pixels import write_rows
from chiasm.schema.facts import ModelFacts
from chiasm.schema.media import PixelRef, Unit
from chiasm.schema.plan import StepPlan, VisionPlan, VisionStep
from chiasm.vision.cost import CostModel

_SEED = 0


class Run(NamedTuple):
    """One run of a plan.

    Attributes:
        seconds: from its start to the last feature on rank 0.
        cut_bytes: received by each rank within the tower, for units that are cut.
        peak_bytes: resident memory of each rank at its highest, weights included; None where the system doesn't tell.
        start: when it began, on the machine's monotonic clock.
        stop: when rank 0 was done.
    """

    seconds: float
    cut_bytes: tuple[int, ...]
    peak_bytes: tuple[int | None, ...]
    start: float
    stop: float


class RankSet:
    """Ranks with a loaded model.

    Attributes:
        facts: of the model.
        cost_model: with rates that these ranks measured as they started, not those kept from another day: what is
            predicted is to be held against what is measured now.
    """

    def __init__(self, config: EngineConfig, runtime_dir: Path) -> None:
        """Start the ranks; raises UserError if the model or a setting is at fault."""
        self._executor = MultiprocExecutor(config, runtime_dir)
        self._step = 0
        self._held: tuple[str, ...] = ()
        try:
            info = self._executor.load()[0]
            self.facts: ModelFacts = info.facts
            rates = self._executor.measure_encoder()
        except BaseException:
            self._executor.close()
            raise
        self.cost_model = CostModel(info.facts.encoder, rates, config.tensor_parallel_size)

    def run(self, plan: VisionPlan) -> Run:
        """Obey a plan; what the one before gave is dropped first."""
        pids = self._executor.rank_pids
        restarted = [_restart_peak(pid) for pid in pids]
        start = time.perf_counter()
        whole = VisionStep(plan, 0, self.facts.encoder.num_stages, plan.predicted_seconds)
        result = self._executor.execute(StepPlan(self._step, (), self._held, (), whole, ()))
        stop = time.perf_counter()
        if result.failed_units:
            raise EngineDeadError(f"{len(result.failed_units)} units could not be encoded; the log above says why.")
        self._step += 1
        self._held = tuple(unit.key for unit in plan.units)
        return Run(
            result.encoder_makespan,
            result.encoder_exchanged_bytes,
            tuple(_peak(pid) if can_tell else None for pid, can_tell in zip(pids, restarted, strict=True)),
            start,
            stop,
        )

    def close(self) -> None:
        """End the ranks."""
        self._executor.close()


@contextmanager
def start_ranks(config: EngineConfig, threads: int) -> Iterator[RankSet]:
    """Ranks of ``threads`` threads each, for the length of a ``with`` block."""
    runtime_dir = create_runtime_dir()
    with _environment("OMP_NUM_THREADS", str(threads)):
        try:
            ranks = RankSet(config, runtime_dir)
        except BaseException:
            remove_runtime_dir(runtime_dir)
            raise
    try:
        yield ranks
    finally:
        ranks.close()
        remove_runtime_dir(runtime_dir)


def make_units(batch: Batch, facts: ModelFacts, folder: Path) -> list[Unit]:
    """Units of a batch's items with random pixels, in files of the new ``folder``; their keys are "item/unit"."""
    folder.mkdir()
    draw = np.random.default_rng(_SEED)
    units = []
    for number, item in enumerate(batch):
        grids = unit_grids(item, facts.encoder)
        num_rows = grids[0][0] * grids[0][1]  # of each: the units of an item are alike
        pixels = draw.integers(0, 256, (len(grids) * num_rows, facts.processor.row_bytes), dtype=np.uint8)
        ref = write_rows([pixels], folder / f"item-{number}")
        for index, grid in enumerate(grids):
            own = PixelRef(ref.path, index * num_rows, num_rows, ref.row_bytes)
            units.append(unit_of(f"{number}/{index}", grid, facts.encoder, own))
    return units


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _restart_peak(pid: int) -> bool:
    """Have Linux count a process's highest memory from now on; False on other systems."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _peak(pid: int) -> int:
    """Bytes, from the line "VmHWM:  1024 kB"."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def interleave(sets: Sequence[tuple[RankSet, VisionPlan]], repeats: int) -> list[list[Run]]:
    """Run every plan ``repeats`` times, in turn, so that what disturbs the machine disturbs all; by plan.

    Each is run once before, to warm up.
    """
    runs: list[list[Run]] = [[] for _ in sets]
    for repeat in range(repeats + 1):
        for index, (ranks, plan) in enumerate(sets):
            run = ranks.run(plan)
            if repeat:
                runs[index].append(run)
    return runs

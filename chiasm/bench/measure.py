"""``chiasm bench encoder`` on real ranks of this machine: what is measured, beside what is predicted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec

from chiasm.bench.encoder import BatchResult, Measured, Outcome, Row, modes_of, plan_mode, row_of
from chiasm.bench.ranks import RankSet, Run, interleave, make_units, start_ranks
from chiasm.bench.trace import Chart, measured_chart
from chiasm.bench.workloads import Batch, Workload, find_workloads, units_of
from chiasm.config.engine import EncoderMode, EngineConfig
from chiasm.schema.media import Unit


class _Ranks(NamedTuple):
    """All ranks hold the model at once, so that the modes can be run in turn.

    Attributes:
        alone: one rank.
        replicated: those that place units.
        sharded: those that share the tower's weights; the same as ``replicated`` where its heads do not allow it.
    """

    alone: RankSet
    replicated: RankSet
    sharded: RankSet

    def of(self, mode: str) -> RankSet:
        """Those that run a mode."""
        return self.sharded if mode == "weights" else self.replicated


def measure(
    config: EngineConfig,
    workload: str,
    threads: int,
    repeats: int,
    *,
    with_charts: bool,
) -> Outcome:
    """Rows for every workload and mode.

    Args:
        config: the model, and how many ranks.
        workload: a name, a group of them, or a JSON file.
        threads: of each rank, on a CPU.
        repeats: runs of each plan; their median counts.
        with_charts: whether the last run of each plan is charted too.

    Raises:
        UserError: for a model or workload that can't be used.
    """
    rows: list[Row] = []
    runs: list[_LastRun] = []
    workloads = find_workloads(workload)
    with TemporaryDirectory() as name:
        folder = Path(name)
        with ExitStack() as stack:
            ranks = _start(config, threads, stack, folder)
            for one in workloads:
                results = _run_workload(one, ranks, repeats, folder / one.name, runs)
                rows.extend(row_of(one.name, mode, batches) for mode, batches in results.items())
        return Outcome(rows, [_chart(run, folder) for run in runs] if with_charts else [])


class _LastRun(NamedTuple):
    """A plan's last run, for the trace."""

    workload: str
    mode: str
    num_ranks: int
    run: Run


def _chart(last: _LastRun, folder: Path) -> Chart:
    name = f"{last.workload}, {last.mode}, {last.num_ranks} ranks"
    noted = _trace_folder(folder, last.num_ranks, "weights" if last.mode == "weights" else "auto")
    return measured_chart(name, noted, last.num_ranks, last.run.start, last.run.stop)


def _trace_folder(folder: Path, num_ranks: int, mode: EncoderMode) -> Path:
    return folder / f"trace-{num_ranks}-{mode}"


def _start(config: EngineConfig, threads: int, stack: ExitStack, folder: Path) -> _Ranks:
    def start(num_ranks: int, mode: EncoderMode) -> RankSet:
        noted = _trace_folder(folder, num_ranks, mode)
        noted.mkdir()
        changed = msgspec.structs.replace(
            config, tensor_parallel_size=num_ranks, mm_encoder_tp_mode=mode, mm_encoder_trace_dir=str(noted)
        )
        return stack.enter_context(start_ranks(changed, threads))

    replicated = start(config.tensor_parallel_size, "auto")
    can_shard = "weights" in modes_of(replicated.cost_model)
    sharded = start(config.tensor_parallel_size, "weights") if can_shard else replicated
    return _Ranks(start(1, "data"), replicated, sharded)


def _run_workload(
    workload: Workload, ranks: _Ranks, repeats: int, folder: Path, last_runs: list[_LastRun]
) -> dict[str, list[BatchResult]]:
    """The results of each mode; ``last_runs`` gets the last run of each."""
    folder.mkdir()
    modes = modes_of(ranks.replicated.cost_model)
    results: dict[str, list[BatchResult]] = {mode: [] for mode in modes}
    for number, batch in enumerate(workload.batches):
        units_of(batch, ranks.alone.facts.encoder)  # refuses what does not fit the tower
        items = list(_by_item(batch, make_units(batch, ranks.alone.facts, folder / str(number))))
        plans = {mode: plan_mode(mode, items, ranks.of(mode).cost_model) for mode in modes}
        alone = (ranks.alone, plan_mode("data", items, ranks.alone.cost_model))
        alone_runs, *runs = interleave([alone, *((ranks.of(mode), plans[mode]) for mode in modes)], repeats)
        alone_seconds = median(run.seconds for run in alone_runs)
        for mode, own in zip(modes, runs, strict=True):
            model = ranks.of(mode).cost_model
            results[mode].append(BatchResult(plans[mode], model, _measured(own, alone_seconds)))
            last_runs.append(_LastRun(workload.name, mode, model.num_ranks, own[-1]))
    return results


def _by_item(batch: Batch, units: Sequence[Unit]) -> Iterator[Sequence[Unit]]:
    start = 0
    for frames, _, _ in batch:
        yield units[start : start + frames]
        start += frames


def _measured(runs: Sequence[Run], alone_seconds: float) -> Measured:
    peaks = [peak for run in runs for peak in run.peak_bytes]
    known = [run.peak_bytes for run in runs] if None not in peaks else []
    by_rank = tuple(max(peak or 0 for peak in own) for own in zip(*known, strict=True))
    return Measured(
        seconds=median(run.seconds for run in runs),
        alone_seconds=alone_seconds,
        cut_bytes=sum(runs[-1].cut_bytes),  # the same in every run
        peak_memory_bytes=by_rank or None,
    )

"""The engine's core: it owns the scheduler and the ranks, and advances them step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from chiasm.config.engine import EngineConfig
from chiasm.engine.core.capacity import Capacity, decide_capacity
from chiasm.engine.core.encoder_rates import encoder_rates
from chiasm.engine.core.request_clocks import RequestClocks
from chiasm.engine.core.step_feed import StepFeed
from chiasm.engine.executor.base import Executor
from chiasm.engine.executor.inproc import InprocExecutor
from chiasm.engine.executor.multiproc import MultiprocExecutor
from chiasm.engine.scheduler.limits import SchedulerLimits
from chiasm.engine.scheduler.scheduler import Scheduler
from chiasm.errors import UserError
from chiasm.schema.facts import EncoderRates
from chiasm.schema.output import EngineStats, SequenceDelta
from chiasm.schema.profile import EngineProfile
from chiasm.schema.request import EngineRequest
from chiasm.schema.steps import StepNews
from chiasm.schema.wire import RankInfo, Ready


@dataclass
class _StepClock:
    """Seconds since a profile was begun: of whole steps, and of them with the ranks."""

    num_steps: int = 0
    step: float = 0.0
    execute: float = 0.0


class EngineCore:
    """Schedule, execute, apply.

    Args:
        config: the engine's settings.
        executor: the ranks, not loaded yet.

    Raises:
        UserError: if the model or a setting is at fault.
        EngineDeadError: if a rank died while loading.
    """

    def __init__(self, config: EngineConfig, executor: Executor) -> None:
        self._executor = executor
        self._clock: _StepClock | None = None
        infos = executor.load()
        rates = encoder_rates(config, infos[0], executor)
        capacity = decide_capacity(config, infos)
        executor.allocate(capacity.num_blocks)
        attends = infos[0].facts.num_cross_layers > 0
        self._scheduler = Scheduler(_limits(config, infos[0], rates, capacity))
        self._num_ranks = config.tensor_parallel_size
        self._num_stages = infos[0].facts.encoder.num_stages
        self._clocks = RequestClocks(self._num_stages)
        self._feed: StepFeed | None = None
        self.ready = Ready(
            facts=infos[0].facts,
            max_model_len=capacity.max_model_len,
            summary=_summary(config, infos[0], capacity),
            rank_pids=executor.rank_pids,
            max_seen_rows=capacity.encoder_cache_bytes // infos[0].feature_row_bytes if attends else None,
        )

    @property
    def has_work(self) -> bool:
        """Whether ``step`` would do something."""
        return self._scheduler.has_work

    def add(self, request: EngineRequest) -> None:
        """Take up a sequence."""
        self._scheduler.add(request)
        self._clocks.add(request)

    def abort(self, request_ids: Iterable[str]) -> None:
        """Forget sequences."""
        self._scheduler.abort(request_ids)

    def step(self) -> None:
        """Advance every scheduled sequence once.

        Raises:
            EngineDeadError: if a rank has died.
        """
        begin = time.perf_counter()
        plan = self._scheduler.schedule()
        self._clocks.begin(plan)
        if self._feed is not None:
            self._feed.begin(plan)
        scheduled = time.perf_counter()
        result = self._executor.execute(plan)
        executed = time.perf_counter()
        self._clocks.end(plan)
        self._scheduler.apply(plan, result)
        if self._feed is not None:
            self._feed.end(plan, result, self.stats(), is_idle=not self.has_work)
        if self._clock is not None:
            self._clock.num_steps += 1
            self._clock.execute += executed - scheduled
            self._clock.step += time.perf_counter() - begin

    def start_profile(self) -> None:
        """Record what the ranks compute in the steps that follow.

        Raises:
            UserError: if that is done already.
        """
        if self._clock is not None:
            raise UserError("a profile is being taken already.", param="profile")
        self._executor.start_profile()
        self._clock = _StepClock()

    def stop_profile(self, folder: Path) -> EngineProfile:
        """End it; every rank writes a file into a folder.

        Raises:
            UserError: if none was begun, or it can't be written.
        """
        clock, self._clock = self._clock, None
        if clock is None:
            raise UserError("no profile is being taken.", param="profile")
        ranks = self._executor.stop_profile(folder)
        return EngineProfile(clock.num_steps, clock.step, clock.step - clock.execute, tuple(ranks))

    def watch(self, tell: Callable[[StepNews], None] | None) -> None:
        """Tell of every step from now on; None ends that."""
        self._feed = None if tell is None else StepFeed(self._num_ranks, self._num_stages, tell)

    def take_deltas(self) -> tuple[SequenceDelta, ...]:
        """News since the last call."""
        return self._clocks.stamp(self._scheduler.take_deltas())

    def stats(self) -> EngineStats:
        """Gauges and totals."""
        return msgspec.structs.replace(self._scheduler.stats(), units_ahead=self._clocks.units_ahead)

    def check(self) -> None:
        """Raise ``EngineDeadError`` if a rank has died; called while there is no work."""
        self._executor.check()

    def close(self) -> None:
        """End the ranks."""
        self._executor.close()


def make_executor(config: EngineConfig, runtime_dir: Path) -> Executor:
    """One rank runs in this process, more run in processes of their own."""
    if config.tensor_parallel_size == 1:
        return InprocExecutor(config)
    return MultiprocExecutor(config, runtime_dir)


def _limits(config: EngineConfig, info: RankInfo, rates: EncoderRates, capacity: Capacity) -> SchedulerLimits:
    return SchedulerLimits(
        num_blocks=capacity.num_blocks,
        block_size=config.block_size,
        max_model_len=capacity.max_model_len,
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_batched_patches=config.max_num_batched_patches,
        encoder_step_seconds=None if config.encoder_step_budget_ms is None else config.encoder_step_budget_ms / 1e3,
        encoder_step_patches=config.encoder_step_budget_patches,
        feature_row_bytes=info.feature_row_bytes,
        encoder_cache_bytes=capacity.encoder_cache_bytes,
        encoder_kept_bytes=capacity.encoder_kept_bytes,
        enable_prefix_caching=config.enable_prefix_caching,
        num_ranks=config.tensor_parallel_size,
        encoder_mode=config.mm_encoder_tp_mode,
        min_units_per_rank=config.mm_encoder_min_units_per_rank,
        encoder=info.facts.encoder,
        encoder_rates=rates,
        eos_token_ids=info.facts.eos_token_ids,
    )


def _summary(config: EngineConfig, info: RankInfo, capacity: Capacity) -> tuple[str, ...]:
    ranks = config.tensor_parallel_size
    is_random = config.load_format == "dummy"
    encoder = {
        "weights": f"weights sharded over {ranks} ranks (mm_encoder_tp_mode=weights)",
        "data": f"data-parallel over {ranks} ranks, whole units (mm_encoder_tp_mode=data)",
        "auto": f"data-parallel over {ranks} ranks, units cut by rows where it pays (mm_encoder_tp_mode=auto)",
    }[config.mm_encoder_tp_mode]
    return (
        f"model: {info.facts.model_type} on {ranks} {'rank' if ranks == 1 else 'ranks'}",
        f"device: {info.device}",
        f"dtype: {info.dtype}",
        *(["weights: random numbers, so that answers mean nothing (load_format=dummy)"] if is_random else []),
        *info.kernels,
        f"encoder: {encoder if ranks > 1 else 'one rank computes every unit'}",
        *capacity.summary,
    )

"""Each rank in a process of its own."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import zmq

from chiasm.config.engine import EngineConfig
from chiasm.dist.channel import Channel
from chiasm.dist.children import Child, start_child, stop_children
from chiasm.dist.cores import num_usable_cores
from chiasm.errors import EngineDeadError, UserError
from chiasm.schema.facts import EncoderRates
from chiasm.schema.plan import StepPlan, StepResult
from chiasm.schema.profile import RankProfile
from chiasm.schema.wire import (
    AllocateBlocks,
    BlocksAllocated,
    EncoderMeasured,
    FromRank,
    LoadModel,
    MeasureEncoder,
    ProfileFailed,
    ProfileStarted,
    RankFailed,
    RankInfo,
    RankProfiled,
    StartProfile,
    Step,
    StepDone,
    StopProfile,
    StopRank,
    ToRank,
)

_POLL_MS = 100
_BLAME_SECONDS = 0.3


class MultiprocExecutor:
    """Starts the ranks, sends each the same messages, and watches that none dies.

    Args:
        config: the engine's settings.
        runtime_dir: the engine's private folder.
    """

    def __init__(self, config: EngineConfig, runtime_dir: Path) -> None:
        self._config = config
        self._size = config.tensor_parallel_size
        self._channels: list[Channel[FromRank]] = [
            Channel(runtime_dir, f"rank-{rank}", FromRank, is_binding=True) for rank in range(self._size)
        ]
        self._poller = zmq.Poller()
        for channel in self._channels:
            self._poller.register(channel.socket, zmq.POLLIN)
        self._children = [self._start(rank, runtime_dir) for rank in range(self._size)]
        self._is_closed = False

    @property
    def rank_pids(self) -> tuple[int, ...]:
        """The ranks' process ids."""
        return tuple(child.pid for child in self._children)

    def load(self) -> list[RankInfo]:
        """Have every rank load the model."""
        self._send(LoadModel(self._config, self._size))
        return [info for info in self._replies(range(self._size)) if isinstance(info, RankInfo)]

    def measure_encoder(self) -> EncoderRates:
        """Have all ranks measure together."""
        self._send(MeasureEncoder())
        replies = self._replies(range(self._size), self._config.step_timeout)
        measured = [reply for reply in replies if isinstance(reply, EncoderMeasured)]
        assert len(measured) == self._size, replies
        return measured[0].rates

    def allocate(self, num_blocks: int) -> None:
        """Have every rank make its KV cache."""
        self._send(AllocateBlocks(num_blocks))
        replies = self._replies(range(self._size))
        assert all(isinstance(reply, BlocksAllocated) for reply in replies), replies

    def execute(self, plan: StepPlan) -> StepResult:
        """Have every rank obey a plan; rank 0 answers."""
        self._send(Step(plan))
        (reply,) = self._replies(range(1), self._config.step_timeout)
        assert isinstance(reply, StepDone), reply
        return reply.result

    def start_profile(self) -> None:
        """Have every rank record what it computes."""
        self._send(StartProfile())
        replies = self._replies(range(self._size), self._config.step_timeout)
        assert all(isinstance(reply, ProfileStarted) for reply in replies), replies

    def stop_profile(self, folder: Path) -> list[RankProfile]:
        """Have every rank write what it recorded."""
        self._send(StopProfile(str(folder)))
        replies = self._replies(range(self._size), self._config.step_timeout)
        for reply in replies:
            if isinstance(reply, ProfileFailed):
                raise UserError(reply.message, param="profile")
        profiles = [reply.profile for reply in replies if isinstance(reply, RankProfiled)]
        assert len(profiles) == self._size, replies
        return profiles

    def check(self) -> None:
        """Fail if a rank has ended."""
        if self._is_closed:
            raise EngineDeadError("the engine is closed.")
        self._check_children(self._children)

    def close(self) -> None:
        """End the ranks: asked first, then killed."""
        if self._is_closed:
            return
        self._is_closed = True
        for channel in self._channels:
            channel.offer(StopRank())
            channel.close()
        stop_children(self._children)

    def _start(self, rank: int, runtime_dir: Path) -> Child:
        # Set before torch is imported there: one thread per core in every rank would be ranks-fold too many.
        threads = str(max(1, num_usable_cores() // self._size))
        return start_child(
            "chiasm.engine.executor.rank_main",
            [str(runtime_dir), str(rank)],
            runtime_dir=runtime_dir,
            name=f"rank {rank}",
            env={"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", threads)},
        )

    def _send(self, message: ToRank) -> None:
        for channel in self._channels:
            channel.send(message, self.check)

    def _replies(self, ranks: range, timeout: float | None = None) -> list[FromRank]:
        """One message from each of these ranks, in order; an error from any rank comes first.

        A rank that hangs is as bad as one that has died: after ``timeout`` seconds the engine is given up.
        """
        replies: dict[int, FromRank] = {}
        deadline = None if timeout is None else time.monotonic() + timeout
        while len(replies) < len(ranks):
            if deadline is not None and time.monotonic() > deadline:
                raise EngineDeadError(f"the ranks have not finished a step within {timeout:g} s (step_timeout).")
            ready = dict(self._poller.poll(_POLL_MS))
            for rank, channel in enumerate(self._channels):
                message = channel.receive(0) if channel.socket in ready else None
                if isinstance(message, RankFailed):
                    self._raise_failure(rank, message)
                if message is not None:
                    replies[rank] = message
            if not ready:
                self.check()
        return [replies[rank] for rank in ranks]

    def _raise_failure(self, rank: int, failure: RankFailed) -> None:
        if failure.is_user_error:
            raise UserError(failure.message)
        # A rank that loses its peer fails in an exchange; what it then says hides the one that was killed, which the
        # system may take a moment to report.
        others = [child for index, child in enumerate(self._children) if index != rank]
        deadline = time.monotonic() + _BLAME_SECONDS
        while time.monotonic() < deadline:
            self._check_children(others)
            time.sleep(_BLAME_SECONDS / 10)
        raise EngineDeadError(f"rank {rank} failed: {failure.message}")

    @staticmethod
    def _check_children(children: Iterable[Child]) -> None:
        for child in children:
            status = child.poll()
            if status is not None:
                raise EngineDeadError(f"{child.name} (process {child.pid}) has ended with status {status}.")

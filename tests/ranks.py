"""Ranks for tests: real processes that are started once and meet anew, over gloo, for every call."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from chiasm.dist.group import Group, init_world
from tests.clocks import PATIENCE

_SECONDS_TO_START = 120.0


class _Call(NamedTuple):
    """What a rank is to run."""

    rank: int
    size: int
    store: Path
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    timeout: float


class RankFailure(AssertionError):
    """A rank raised or did not answer; the message has its traceback."""


class RankPool:
    """Processes that run a function as the ranks of a group."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["tests.invariants"])  # with torch, which takes each rank 1.5 s
        self._ranks: list[tuple[Any, Connection]] = []

    def run(self, size: int, function: Callable[..., Any], *arguments: Any, timeout: float = PATIENCE) -> list[Any]:
        """``function(group, *arguments)`` on ``size`` ranks; its results by rank.

        Args:
            size: number of ranks.
            function: of a test module's top level; it is pickled.
            arguments: pickled, as is the result.
            timeout: seconds until a rank that has not answered fails the test.
        """
        self._start(size)
        with tempfile.TemporaryDirectory() as folder:
            for rank in range(size):
                call = _Call(rank, size, Path(folder) / "store", function, arguments, timeout)
                self._ranks[rank][1].send(call)
            return self._collect(size, timeout)

    def _start(self, size: int) -> None:
        new = []
        while len(self._ranks) < size:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
            process.start()
            theirs.close()
            self._ranks.append((process, ours))
            new.append(ours)
        for connection in new:
            if not connection.poll(_SECONDS_TO_START) or connection.recv() != "ready":
                self.close()
                raise RankFailure("a rank did not start")

    def _collect(self, size: int, timeout: float) -> list[Any]:
        deadline = time.monotonic() + timeout
        results, failures = [], []
        for rank in range(size):
            try:
                if not self._ranks[rank][1].poll(max(0.0, deadline - time.monotonic())):
                    failures.append(f"rank {rank} did not answer within {timeout} s")
                    continue
                is_good, value = self._ranks[rank][1].recv()
            except EOFError:
                is_good, value = False, "died"
            if is_good:
                results.append(value)
            else:
                failures.append(f"rank {rank}: {value}")
        if failures:
            self.close()  # the other ranks may still wait in a collective
            raise RankFailure("\n".join(failures))
        return results

    def close(self) -> None:
        """End the processes; the next call starts new ones."""
        for process, connection in self._ranks:
            connection.close()
            process.kill()
            process.join()
        self._ranks.clear()

    def __enter__(self) -> RankPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self.close()


def _serve(connection: Connection) -> None:
    torch.set_num_threads(1)
    connection.send("ready")
    while True:
        try:
            call: _Call = connection.recv()
        except EOFError:
            return
        connection.send(_answer(call))


def _answer(call: _Call) -> tuple[bool, Any]:
    try:
        group: Group = init_world(call.rank, call.size, call.store, torch.device("cpu"), timeout_seconds=call.timeout)
        # A rank that is done before the others are connected would close its connections in their face.
        group.all_reduce(torch.zeros(1))
        return True, call.function(group, *call.arguments)
    except Exception:
        return False, traceback.format_exc()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()

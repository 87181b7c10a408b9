"""Time that passes when a test says so, for what an event loop waits for; and how long tests wait for what must come.

A limit that is made short for a test runs out early on a busy machine, and what has to stay within it fails. So tests
leave limits as they are, and let the time of their loop pass.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable

import psutil

PATIENCE = 60.0
"""Seconds until a test gives up what it waits for. Long, as only a test that fails waits so long."""

_TURNS = 20  # in which connections are accepted, what has come is read, and what is due happens


class _Clock:
    """A loop's own time, and what was added to it."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.added = 0.0

    def __call__(self) -> float:
        return self._now() + self.added


async def pass_time(seconds: float) -> None:
    """Let all timers of the running loop find that so many seconds have passed, once it has read what has come."""
    loop = asyncio.get_running_loop()
    await take_turns()
    if not isinstance(loop.time, _Clock):
        loop.time = _Clock(loop.time)  # type: ignore[method-assign]
    loop.time.added += seconds
    await take_turns()


async def take_turns() -> None:
    """Let the running loop do what it can do without waiting."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)


def assert_linear(work: Callable[[int], object], size: int) -> None:
    """Fail if eight times as much work takes more than three times as long for each piece of it.

    By the processor's time, and the best of a few times, so that neither a slow nor a busy machine matters. What is
    quadratic takes eight times as long for each piece.

    Args:
        work: does so much of it.
        size: how much is little; an eighth of a second of work, or more, is measured well.
    """
    little, much = (min(_processor_seconds(work, factor * size) for _ in range(3)) for factor in (1, 8))
    assert much < 3 * 8 * little, f"{little:.3g} s for {size}, {much:.3g} s for eight times as much"


def _processor_seconds(work: Callable[[int], object], size: int) -> float:
    start = time.process_time()
    work(size)
    return time.process_time() - start


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for something to become true; fail if it does not."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


async def until(condition: Callable[[], bool]) -> None:
    """The same in an event loop, which goes on meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.002)


def pause(pid: int) -> None:
    """Stop a process, and return once it has stopped: the signal alone leaves it a moment to go on."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)

"""Threads of OpenMP that wait for each other spin for a moment, but only while nobody else wants the cores.

Between two small operations a thread that sleeps costs more than the operation. On cores that others use too, one
that spins keeps off the very thread that it waits for. docs/performance.md has both measured. How long they spin is
set by the environment (chiasm/dist/children.py).

GNU's OpenMP, with which torch is built, has no call to change this while a process runs. But with more threads of its
own than cores it spins no more ("GOMP_SPINCOUNT" in the manual of libgomp), and it counts anew whenever a thread
begins or ends to use it. So there are more, until the clocks say that the cores are free, and whenever they are
crowded again.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import NamedTuple

import torch

from chiasm.dist.children import SPINNING

_INTERVAL = 0.25  # seconds between two looks at the clocks
_MIN_SECONDS = 0.05  # of work, without which the clocks say nothing
_CROWDED, _FREE = 0.1, 0.05  # share of the time that a thread which could run has to wait for a core
_PARALLEL_ELEMENTS = 2**16  # for each thread, so that torch uses all of them


class CoreClock(NamedTuple):
    """Seconds that a thread has run, and that it was kept waiting for a core."""

    ran: float
    waited: float

    def since(self, earlier: CoreClock) -> CoreClock:
        """The seconds between the two."""
        return CoreClock(self.ran - earlier.ran, self.waited - earlier.waited)


class SpinGuard:
    """Keeps OpenMP's threads from spinning while others want the cores of the thread that makes this.

    Where the user has told how to wait, for one thread, and where Linux doesn't count how long threads wait, it
    does nothing.

    Args:
        clock: the file that tells; by default this thread's own.
    """

    def __init__(self, clock: Path | None = None) -> None:
        self._closed = threading.Event()
        self._watch: threading.Thread | None = None
        clock = clock or Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        if SPINNING.items() <= os.environ.items() and torch.get_num_threads() > 1 and clock.exists():
            self._watch = threading.Thread(target=self._follow, args=(clock,), name="spin-guard", daemon=True)
            self._watch.start()

    def close(self) -> None:
        """End the watch. A second call does nothing."""
        self._closed.set()
        if self._watch is not None:
            self._watch.join()

    def _follow(self, clock: Path) -> None:
        before = _read_clock(clock)
        crowd = _Crowd()
        crowd.come()
        while not self._closed.wait(_INTERVAL):
            now = _read_clock(clock)
            is_crowded = is_core_crowded(now.since(before), was_crowded=crowd.is_there)
            if is_crowded is None:
                continue
            before = now
            if is_crowded and not crowd.is_there:
                crowd.come()
            elif not is_crowded:
                crowd.go()
        crowd.go()


class _Crowd:
    """Threads that have used OpenMP, with which there are more of its threads than cores."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self._may_go = threading.Event()

    @property
    def is_there(self) -> bool:
        return bool(self._threads)

    def come(self) -> None:
        count = len(os.sched_getaffinity(0)) // torch.get_num_threads() or 1
        self._may_go = threading.Event()
        self._threads = [
            threading.Thread(target=_use_openmp, args=(self._may_go,), daemon=True) for _ in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def go(self) -> None:
        self._may_go.set()
        for thread in self._threads:
            thread.join()
        self._threads = []


def is_core_crowded(spent: CoreClock, *, was_crowded: bool) -> bool | None:
    """Whether others want the cores that a thread ran on; None while it has hardly wanted one itself.

    Args:
        spent: its time since the last answer.
        was_crowded: the last answer.
    """
    wanted = spent.ran + spent.waited
    if wanted < _MIN_SECONDS:
        return None
    return spent.waited / wanted > (_FREE if was_crowded else _CROWDED)


def _read_clock(clock: Path) -> CoreClock:
    """Linux's documentation, sched-stats: nanoseconds on a core, and on the queue of one."""
    ran, waited = (int(value) / 1e9 for value in clock.read_text().split()[:2])
    return CoreClock(ran, waited)


def _use_openmp(may_go: threading.Event) -> None:
    torch.zeros(torch.get_num_threads() * _PARALLEL_ELEMENTS).add_(1)
    may_go.wait()

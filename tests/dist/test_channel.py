from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from chiasm.dist.channel import Channel
from chiasm.schema.wire import ToRank

_TASKS = Path("/proc/self/task")


@pytest.fixture
def _one_core() -> Iterator[None]:
    """On which a new thread runs only when the one that started it waits."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


@pytest.mark.skipif(not _TASKS.exists(), reason="this system doesn't tell of threads")
@pytest.mark.usefixtures("_one_core")
def test_all_threads_run_before_a_sandbox_is_entered(tmp_path: Path) -> None:
    """Else one that comes late, as on a busy machine, ends the process: it may not set its priority any more."""
    for _ in range(20):
        with closing(Channel(tmp_path, "a", ToRank, is_binding=True)) as channel:
            channel.await_threads()
            names = [(task / "comm").read_text().strip() for task in _TASKS.iterdir()]
            assert "ZMQbg/Reaper" in names, "it names itself next"

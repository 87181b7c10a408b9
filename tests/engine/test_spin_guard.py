from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import torch

from chiasm.dist.children import SPINNING
from chiasm.engine.runner import spin_guard
from chiasm.engine.runner.spin_guard import CoreClock, SpinGuard, is_core_crowded


@pytest.mark.parametrize(
    ("ran", "waited", "was_crowded", "expected"),
    [
        pytest.param(0.24, 0.009, False, False, id="idle cores"),
        pytest.param(0.12, 0.12, False, True, id="one beside it"),
        pytest.param(0.16, 0.08, True, True, id="still"),
        pytest.param(0.23, 0.018, False, False, id="a little, which changes nothing"),
        pytest.param(0.23, 0.018, True, True, id="a little, which changes nothing back"),
        pytest.param(0.24, 0.005, True, False, id="no longer"),
        pytest.param(0.001, 0.04, False, None, id="too little work to say"),
    ],
)
def test_cores_are_crowded_when_a_thread_waits_for_one(
    ran: float, waited: float, was_crowded: bool, expected: bool | None
) -> None:
    assert is_core_crowded(CoreClock(ran, waited), was_crowded=was_crowded) is expected


class _Clock:
    """A file as Linux has it for each thread, which is told what to say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ran = self._waited = 0
        self.spend(0, 0)

    def spend(self, ran: float, waited: float) -> None:
        self._ran += int(ran * 1e9)
        self._waited += int(waited * 1e9)
        written = self.path.with_suffix(".new")
        written.write_text(f"{self._ran} {self._waited} 7\n")
        written.replace(self.path)


def _wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Clock:
    for name, value in SPINNING.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(spin_guard, "_INTERVAL", 0.01)
    return _Clock(tmp_path / "schedstat")


def test_more_threads_are_there_but_while_cores_are_free(clock: _Clock) -> None:
    before = threading.active_count()
    with closing(SpinGuard(clock.path)) as guard:
        _wait_until(lambda: threading.active_count() > before + 1)
        clock.spend(2.0, 0.0)
        _wait_until(lambda: threading.active_count() == before + 1)  # the one that watches
        clock.spend(1.0, 1.0)
        _wait_until(lambda: threading.active_count() > before + 1)
    guard.close()
    assert threading.active_count() == before


@pytest.mark.parametrize("reason", ["policy", "one thread", "no clock"])
def test_nothing_is_watched_in_vain(reason: str, clock: _Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    if reason == "policy":
        monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    elif reason == "one thread":
        monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    else:
        clock.path.unlink()
    before = threading.active_count()
    with closing(SpinGuard(clock.path)):
        assert threading.active_count() == before

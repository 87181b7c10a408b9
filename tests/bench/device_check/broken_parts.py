"""Parts that end in every way in which a part can end."""

from __future__ import annotations

import os
import signal
import time

from bench.device_check.probe import Outcome, Probe


def good(probe: Probe, word: str = "good") -> None:
    probe.fact("fact", word)
    probe.check("first", lambda: Outcome(True, "1 of 1"))
    probe.speed("speed", 12.5, "GB/s", (50.0, "50 GB/s"))
    probe.kernel("a step", "kernel|of_mine", 3, 0.002, 0.25)
    probe.compiled("kernel", 1.5)


def wrong(probe: Probe) -> None:
    probe.check("differs", lambda: Outcome(False, "2 is not 1"))
    probe.check("goes on", lambda: Outcome(True, "fine"))


def raises(probe: Probe) -> None:
    probe.check("before", lambda: Outcome(True, "fine"))
    raise RuntimeError("the engine can't start")


def aborts(probe: Probe) -> None:
    print("CUDA said something", flush=True)
    probe.check("in it", _abort)


def _abort() -> Outcome:
    os.kill(os.getpid(), signal.SIGABRT)
    return Outcome(True, "")


def hangs(probe: Probe) -> None:
    probe.check("before", lambda: Outcome(True, "fine"))
    probe.check("in it", _hang)


def _hang() -> Outcome:
    child = os.fork()  # what it has started must not live on
    if child == 0:
        time.sleep(1000)
    (probe_file := os.environ["HANGING_CHILD"]) and os.write(
        os.open(probe_file, os.O_WRONLY | os.O_CREAT), b"%d" % child
    )
    time.sleep(1000)
    return Outcome(True, "")


def clings(probe: Probe) -> None:
    """Closes all that it could be heard by, and stays."""
    os.closerange(3, 64)
    time.sleep(1000)


def fills(probe: Probe) -> None:
    """Takes the place of the report, so that it can't be written any more."""
    probe.check("before", lambda: Outcome(True, "fine"))
    report = probe.scratch.parent / "report.json"
    while not report.exists():
        time.sleep(0.01)
    report.unlink()
    report.mkdir()
    probe.check("behind", lambda: Outcome(True, "fine"))


def leaves(probe: Probe) -> None:
    probe.check("before", lambda: Outcome(True, "fine"))
    os._exit(0)

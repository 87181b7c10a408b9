"""What a check finds, and how checks are run within a time."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

import msgspec

Status = Literal["ok", "skipped", "WRONG", "not reached"]


class Finding(msgspec.Struct, frozen=True):
    """What a check found.

    Attributes:
        name: of the check.
        status: whether it holds.
        detail: the figures, or what went wrong.
        seconds: that it took.
    """

    name: str
    status: Status
    detail: str
    seconds: float


class Speed(msgspec.Struct, frozen=True):
    """A measured rate."""

    name: str
    value: float
    unit: str


class Report(msgspec.Struct, frozen=True):
    """All of a run.

    Attributes:
        device: its name.
        torch: version.
        lines: what the engine chose on it, and why.
        findings: of the checks.
        speeds: that were measured.
        seconds: of the run.
    """

    device: str
    torch: str
    lines: tuple[str, ...]
    findings: tuple[Finding, ...]
    speeds: tuple[Speed, ...]
    seconds: float

    @property
    def is_good(self) -> bool:
        """Whether every check was reached and holds, or was none for this device."""
        return all(finding.status in ("ok", "skipped") for finding in self.findings)


class Outcome(NamedTuple):
    """Whether a check holds, and the figures; or why it is none for this device or family."""

    is_good: bool
    detail: str
    is_skipped: bool = False


Check = tuple[str, Callable[[], Outcome]]


class Deadline:
    """A time that checks have together.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._start = time.perf_counter()
        self._seconds = seconds

    @property
    def elapsed(self) -> float:
        """Seconds so far."""
        return time.perf_counter() - self._start

    @property
    def is_over(self) -> bool:
        """Whether no more is to be begun."""
        return self.elapsed >= self._seconds


def run_checks(checks: Iterable[Check], deadline: Deadline) -> Iterator[Finding]:
    """Run them in order; one that raises is wrong and the others go on."""
    for name, check in checks:
        start = deadline.elapsed
        if deadline.is_over:
            yield Finding(name, "not reached", f"after {start:.0f} s", 0.0)
            continue
        try:
            outcome = check()
        except Exception as error:  # whatever it is, it is what was to be found out
            last = traceback.extract_tb(error.__traceback__)[-1]
            words = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
            outcome = Outcome(is_good=False, detail=words)
        status: Status = "skipped" if outcome.is_skipped else "ok" if outcome.is_good else "WRONG"
        yield Finding(name, status, outcome.detail, deadline.elapsed - start)

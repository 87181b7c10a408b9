"""What a part finds, sent to the process that started it as lines of JSON."""

from __future__ import annotations

import json
import math
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

Send = Callable[[dict[str, Any]], None]


class Outcome(NamedTuple):
    """Whether a check holds, and the figures."""

    is_good: bool
    detail: str


class Skip(Exception):  # noqa: N818  # it is no error
    """A check that is none for this device; the message says why."""


class Probe:
    """A part's device, and where its findings go.

    Args:
        device: that is checked.
        scratch: a folder that all parts of a run share.
        send: takes records; see ``report.PartReport.add``.
    """

    def __init__(self, device: torch.device, scratch: Path, send: Send) -> None:
        self.device = device
        self.scratch = scratch
        self._send = send
        self._is_lost = False

    @property
    def is_gpu(self) -> bool:
        """Whether it is one that CUDA knows."""
        return self.device.type == "cuda"

    def fact(self, name: str, value: object) -> None:
        """Report what the machine is, or what was chosen on it."""
        self._send({"kind": "fact", "name": name, "value": str(value)})

    def check(self, name: str, call: Callable[[], Outcome]) -> None:
        """Run a check and report what it finds; one that raises is wrong, and the next one goes on.

        After an error that the GPU doesn't recover from, further checks are reported as not reached.
        """
        if self._is_lost:
            self._finding(name, "not reached", "the GPU was lost before", 0.0)
            return
        self._send({"kind": "begin", "name": name})
        start = time.perf_counter()
        try:
            outcome = call()
            self._finding(name, "ok" if outcome.is_good else "WRONG", outcome.detail, time.perf_counter() - start)
        except Skip as reason:
            self._finding(name, "skipped", str(reason), time.perf_counter() - start)
        except Exception as error:  # whatever it is, it is what was to be found out
            self._finding(name, "WRONG", _words(error), time.perf_counter() - start)
            self._is_lost = self.is_gpu and not _is_alive(self.device)

    def speed(self, name: str, value: float, unit: str, peak: tuple[float, str] | None = None) -> None:
        """Report what was measured, and its share of a peak, which has a value in the same unit and a name."""
        if not 0 < value < math.inf:
            self._finding(name, "WRONG", f"{value} {unit} is no speed", 0.0)
            return
        record = {"kind": "speed", "name": name, "value": value, "unit": unit}
        if peak is not None:
            record |= {"share": value / peak[0], "of": peak[1]}
        self._send(record)

    def kernel(self, during: str, name: str, calls: int, seconds: float, share: float) -> None:
        """Report one of the kernels that took longest, and its share of the time of all of them."""
        self._send(
            {"kind": "kernel", "during": during, "name": name, "calls": calls, "milliseconds": 1e3 * seconds,
             "share": share}
        )  # fmt: skip

    def compiled(self, name: str, seconds: float) -> None:
        """Report a kernel that was compiled."""
        self._send({"kind": "compiled", "name": name, "seconds": seconds})

    def _finding(self, name: str, status: str, detail: str, seconds: float) -> None:
        self._send({"kind": "finding", "name": name, "status": status, "detail": detail, "seconds": seconds})


def _words(error: Exception) -> str:
    """The error, and the last lines of ours that led to it."""
    frames = traceback.extract_tb(error.__traceback__)
    places = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-3:]))
    return f"{type(error).__name__}: {error} ({places})"


def _is_alive(device: torch.device) -> bool:
    try:
        torch.cuda.synchronize(device)
        torch.zeros(1, device=device).add_(1).item()
    except Exception:  # a sticky error comes again with every call
        return False
    return True


def send_to(fd: int) -> Send:
    """Writes records to a file descriptor, a line each and at once."""
    stream = open(fd, "w", buffering=1, encoding="utf-8")  # noqa: SIM115  # it lives as long as the process

    def send(record: dict[str, Any]) -> None:
        stream.write(json.dumps(record) + "\n")

    return send

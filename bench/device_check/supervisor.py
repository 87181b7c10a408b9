"""Runs parts one after another, each in a process of its own with a time limit, and keeps the report as it grows."""

from __future__ import annotations

import contextlib
import json
import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from bench.device_check.parts import Part
from bench.device_check.report import PartReport, Report

_SECONDS_TO_IMPORT = 180.0
_SECONDS_TO_DUMP = 3.0
_SECONDS_TO_END = 5.0
_CPU_PATIENCE = 4.0  # times the limits that are made for GPUs
_LAST_WORDS = 300

Say = Callable[[str], None]


class Settings(NamedTuple):
    """How parts are run.

    Attributes:
        device: "cuda" or "cpu".
        out: folder of the report, of each part's log and of what parts share.
        seconds: after which no part is begun, and a running one is ended.
        environment: of the processes.
    """

    device: str
    out: Path
    seconds: float
    environment: dict[str, str]


class _Stopped(Exception):  # noqa: N818  # a part's end, not an error of ours
    """A part has ended before it said so: ``status`` and why."""

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status


def run_parts(parts: Sequence[Part], settings: Settings, report: Report, say: Say) -> None:
    """Run parts, whatever becomes of each, and bring the report up to date with each thing that is found.

    Args:
        parts: in their order; the report has an entry for each.
        settings: how.
        report: to be filled, and written to ``settings.out``.
        say: told of each thing that is found.
    """
    start = time.monotonic()
    deadline = start + settings.seconds

    def keep() -> None:
        report.seconds = time.monotonic() - start
        with contextlib.suppress(OSError):  # a full disk is not the device's fault: what was found is still told
            report.write(settings.out)

    with _Ahead(parts, settings) as ahead:
        for part, own in zip(parts, report.parts, strict=True):
            if time.monotonic() < deadline:
                _run(part, own, ahead, deadline, keep, say)
            else:
                own.detail = f"{settings.seconds:.0f} s were over"
            keep()


def _run(part: Part, own: PartReport, ahead: _Ahead, deadline: float, keep: Callable[[], None], say: Say) -> None:
    """One part, from its start to its end, of whatever kind."""
    own.status = "running"
    begun = time.monotonic()
    with closing(ahead.take()) as child:
        try:
            child.wait_until_ready(deadline)
            ahead.begin()
            begun = time.monotonic()
            child.go()
            for record in child.records(min(deadline, begun + part.seconds * ahead.patience)):
                own.add(record)
                own.seconds = time.monotonic() - begun
                _tell(part, record, say)
                keep()
            own.status = "WRONG" if _has_wrong(own) else "ok"
        except _Stopped as stopped:
            own.status, own.detail = stopped.status, str(stopped)
            say(f"{own.status:11} {part.name}: {own.detail}")
        except BaseException:
            own.status = "interrupted"
            keep()
            raise
        own.seconds = time.monotonic() - begun


class _Ahead:
    """Starts processes of parts before their turn: they import, and do not touch the device.

    Attributes:
        patience: how many times longer parts may take than on a GPU.
    """

    def __init__(self, parts: Sequence[Part], settings: Settings) -> None:
        self.patience = 1.0 if settings.device == "cuda" else _CPU_PATIENCE
        self._settings = settings
        self._left = deque(parts)
        self._begun: _Child | None = None

    def begin(self) -> None:
        """Start the next part's process, unless it is started or there is none."""
        if self._begun is None and self._left:
            self._begun = _Child(self._left.popleft(), self._settings)

    def take(self) -> _Child:
        """The next part's process."""
        self.begin()
        child, self._begun = self._begun, None
        assert child is not None
        return child

    def __enter__(self) -> _Ahead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._begun is not None:
            self._begun.close()


def _has_wrong(own: PartReport) -> bool:
    return any(finding["status"] not in ("ok", "skipped") for finding in own.findings)


def _tell(part: Part, record: dict[str, Any], say: Say) -> None:
    kind = record["kind"]
    if kind == "finding":
        say(f"{record['status']:11} {record['seconds']:6.1f} s  {part.name}: {record['name']}: {record['detail']}")
    elif kind == "speed":
        share = f"  {100 * record['share']:.0f} % of {record['of']}" if "share" in record else ""
        say(f"{'':11} {record['value']:,.4g} {record['unit']}  {record['name']}{share}")
    elif kind == "fact":
        say(f"{'':11} {record['name']}: {record['value']}")


class _Child:
    """A part's process."""

    def __init__(self, part: Part, settings: Settings) -> None:
        self._log = settings.out / "logs" / f"{part.name}.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        scratch = settings.out / "scratch"
        scratch.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-u",
            "-m",
            "bench.device_check.child",
            part.function,
            settings.device,
            str(scratch),
        ]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [*command, *part.arguments],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=settings.environment,
                start_new_session=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        self._fd = self._process.stdout.fileno()
        self._rest = b""
        self._doing = "starting"

    def wait_until_ready(self, deadline: float) -> None:
        """Return once everything is imported."""
        record = self._next(min(deadline, time.monotonic() + _SECONDS_TO_IMPORT))
        assert record["kind"] == "ready", record
        self._doing = "beginning"

    def go(self) -> None:
        """Let the part begin."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: the next record tells how
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()

    def records(self, deadline: float) -> Iterator[dict[str, Any]]:
        """What it finds, until it says that it is through.

        Raises:
            _Stopped: if it ends without having said so, or goes on for too long.
        """
        while True:
            record = self._next(deadline)
            if record["kind"] == "end":
                return
            if record["kind"] == "begin":
                self._doing = record["name"]
            else:
                yield record
                self._doing = f"after {record.get('name', record['kind'])}"

    def _next(self, deadline: float) -> dict[str, Any]:
        with selectors.DefaultSelector() as selector:
            selector.register(self._fd, selectors.EVENT_READ)
            while b"\n" not in self._rest:
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    raise _Stopped("hung", f"{self._doing}; {self._where()}")
                received = os.read(self._fd, 2**16)
                if not received:
                    raise _Stopped("aborted", self._last_words())
                self._rest += received
        line, _, self._rest = self._rest.partition(b"\n")
        record: dict[str, Any] = json.loads(line)
        return record

    def _where(self) -> str:
        """Ask it in which line of Python it is."""
        before = self._log.stat().st_size
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGUSR1)
        end = time.monotonic() + _SECONDS_TO_DUMP
        place = ""
        while time.monotonic() < end and not place:
            time.sleep(0.05)
            place = _innermost(self._log.read_bytes()[before:].decode(errors="replace"))
        return place or "in no Python code"

    def _last_words(self) -> str:
        """How it ended, and what it printed last."""
        try:
            code = self._process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            return f"it said nothing more and did not end; {self._doing}; {self._where()}"
        text, _, dump = self._log.read_text(encoding="utf-8", errors="replace").partition("Fatal Python error")
        printed = [line.strip() for line in text.splitlines() if line.strip()]
        words = [
            f"exit status {code}" if code >= 0 else signal.Signals(-code).name,
            self._doing,
            _innermost(dump),
            printed[-1][:_LAST_WORDS] if printed else "",
        ]
        return "; ".join(filter(None, words))

    def close(self) -> None:
        """End it, and all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that a driver holds on to can't be waited for
            self._process.wait(_SECONDS_TO_END)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()


def _innermost(dump: str) -> str:
    """Where the main thread is, by faulthandler's words: its innermost lines of Python; "" where there is none."""
    _, _, main = dump.rpartition("Current thread")
    frames = re.findall(r'File "(?:.*/)?([^"/]+)", line (\d+)', main)
    return "in " + " < ".join(f"{name}:{line}" for name, line in frames[:4]) if frames else ""

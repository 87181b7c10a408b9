"""``chiasm serve`` in a process of its own, for whoever measures it."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from chiasm.errors import UserError

_STOP_SECONDS = 60
_KEPT_LINES = 15
_LOOK_SECONDS = 0.005


class ServerProcess:
    """``chiasm serve`` on a free port while the context is open.

    Args:
        arguments: of the command, but for the port.
        start_seconds: how long it may take to be ready.
        log: file for all that it prints; None takes one that is gone afterwards.

    Attributes:
        url: where it serves.
        process: its main process.
        ready_seconds: from the start of the process to the line that says so.

    Raises:
        UserError: if it doesn't start, with the last lines that it printed.
    """

    def __init__(self, arguments: Sequence[str], start_seconds: float = 1800.0, log: Path | None = None) -> None:
        self._command = [sys.executable, "-m", "chiasm.cli", "serve", *arguments, "--port", "0"]
        self._start_seconds = start_seconds
        self._folder = tempfile.TemporaryDirectory()
        self.log = log or Path(self._folder.name, "log")
        self.url = ""
        self.ready_seconds = 0.0

    def __enter__(self) -> Self:
        """Start, and wait until it serves."""
        start = time.perf_counter()
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(self._command, stdout=file, stderr=subprocess.STDOUT)
        try:
            self.url = self._await_url(start + self._start_seconds)
        except BaseException:
            self._end()
            raise
        self.ready_seconds = time.perf_counter() - start
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """End it, however long it takes."""
        self._end()

    def printed(self) -> str:
        """All that it has printed and logged."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def stop(self) -> int:
        """Ask it to end, and wait; returns its status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait until it has ended; returns its status."""
        return self.process.wait(_STOP_SECONDS)

    def _await_url(self, deadline: float) -> str:
        while time.perf_counter() < deadline:
            if found := re.search(r"Serving on (http://\S+)", self.printed()):
                return found[1]
            if self.process.poll() is not None:
                raise UserError("chiasm serve ends:\n" + "\n".join(self.printed().splitlines()[-_KEPT_LINES:]))
            time.sleep(_LOOK_SECONDS)
        raise UserError("chiasm serve is not ready in time (--start-timeout).", param="start_timeout")

    def _end(self) -> None:
        try:
            self.stop()
        finally:
            self.process.kill()
            self.process.wait()
            self._folder.cleanup()

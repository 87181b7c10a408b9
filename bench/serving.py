"""A server of this checkout in a process of its own, for the benchmarks beside this file."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import TracebackType

import httpcore2

from bench.idle import parse_samples


class BenchServer:
    """``chiasm serve`` with the given arguments, on a free port while the context is open.

    Attributes:
        url: where it serves.
        ready_seconds: from the start of the process to the line that says so.
    """

    def __init__(self, *arguments: str) -> None:
        self._command = [sys.executable, "-m", "chiasm.cli", "serve", *arguments, "--port", "0"]
        self.url = ""
        self.ready_seconds = 0.0

    def __enter__(self) -> BenchServer:
        self._log = tempfile.NamedTemporaryFile("w+")
        start = time.perf_counter()
        self._process = subprocess.Popen(self._command, stdout=self._log, stderr=subprocess.STDOUT)
        while not (found := re.search(r"Serving on (\S+)", self.printed())):
            if self._process.poll() is not None:
                raise SystemExit(self.printed())
            time.sleep(0.005)
        self.ready_seconds = time.perf_counter() - start
        self.url = found[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process.poll() is None:
            self.stop()
        self._log.close()

    @property
    def pid(self) -> int:
        """Process id of the server's main process."""
        return self._process.pid

    def metrics(self) -> dict[str, float]:
        """All samples of ``/metrics``; a name's labels are part of it."""
        return parse_samples(httpcore2.request("GET", f"{self.url}/metrics").content.decode())

    def stop(self) -> int:
        """Ask it to end, and wait; returns its status."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Wait until it has ended; returns its status."""
        return self._process.wait(30)

    def printed(self) -> str:
        """All that it has printed and logged."""
        return Path(self._log.name).read_text(encoding="utf-8")

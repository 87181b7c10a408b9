"""A program in a session of its own: started, waited for, ended with all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

_GRACE = 20.0


class Session(ABC):
    """A child of this process that runs while the context is open, with what it prints in a file.

    Args:
        command: its command line.
        environment: all of its variables.
        folder: that it works in.
        is_piped: whether its standard input and output are pipes to this process; else it prints both into the file.

    Attributes:
        ready_seconds: from its start until it was ready.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], *, folder: Path | None, is_piped: bool
    ) -> None:
        self.ready_seconds = 0.0
        self._command = command
        self._environment = environment
        self._folder = folder
        self._is_piped = is_piped

    def __enter__(self) -> Self:
        self._log: IO[str] = tempfile.NamedTemporaryFile("w+", prefix="bench-peers-")
        start = time.perf_counter()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE if self._is_piped else None,
            stdout=subprocess.PIPE if self._is_piped else self._log,
            stderr=self._log,
            text=True,
            env=self._environment,
            cwd=self._folder,
            start_new_session=True,
        )
        try:
            self._wait_until_ready()
        except BaseException:
            self._end()
            raise
        self.ready_seconds = time.perf_counter() - start
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    @abstractmethod
    def _wait_until_ready(self) -> None:
        """Return once it can be used; raise SystemExit if it has ended."""

    @abstractmethod
    def _ask_to_end(self) -> None:
        """Called first when the context closes."""

    def _printed(self, num_characters: int) -> str:
        return Path(self._log.name).read_text()[-num_characters:]

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _end(self) -> None:
        """What is left of its session a while after it was asked to end is killed."""
        self._ask_to_end()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

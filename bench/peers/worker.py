"""An engine in a process of its own, and of its own Python: started, called, halted while others are measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypedDict

_ROOT = Path(__file__).parents[2]
_GRACE = 20.0
_LOG_LINES = 30
_UNSET = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "LD_PRELOAD")


class Answers(TypedDict):
    """What an engine makes of a batch of requests.

    Attributes:
        seconds: from the decoded pictures to the last token of all.
        num_prompt_tokens: of all prompts.
        token_ids: the answer to each.
    """

    seconds: float
    num_prompt_tokens: int
    token_ids: list[list[int]]


class Worker:
    """A child of this process that answers calls while the context is open.

    It is halted (SIGSTOP, with its own children) but for its start and its calls, so that engines which wait busily
    take nothing from the one that is measured.

    Args:
        name: for messages.
        python: the interpreter that has what the module needs.
        module: its module in ``bench.peers``.
        arguments: of the module.
        environment: variables to set beside those of this process; the numbers of threads are never inherited.

    Attributes:
        ready_seconds: from the start of the process until it took calls.
    """

    def __init__(
        self,
        name: str,
        python: str,
        module: str,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.ready_seconds = 0.0
        self._command = [python, "-m", f"bench.peers.{module}", *arguments]
        inherited = {key: value for key, value in os.environ.items() if key not in _UNSET}
        self._environment = {**inherited, **(environment or {}), "PYTHONPATH": str(_ROOT)}

    def __enter__(self) -> Worker:
        self._log = tempfile.NamedTemporaryFile("w+", prefix="bench-peers-")
        start = time.perf_counter()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=self._environment,
            start_new_session=True,
        )
        try:
            self.receive()
        except BaseException:
            self._end()
            raise
        self.ready_seconds = time.perf_counter() - start
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def call(self, method: str, **arguments: Any) -> Any:
        """What a method of the worker returns.

        Raises:
            SystemExit: if it failed or has ended, with what it printed last.
        """
        self.send(method, **arguments)
        return self.receive()

    def send(self, method: str, **arguments: Any) -> None:
        """Begin a call, whose result must be received."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        self._process.stdin.write(json.dumps({"method": method, "arguments": arguments}) + "\n")
        self._process.stdin.flush()

    def receive(self) -> Any:
        """Wait for the result of a call; raises as ``call`` does."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        message = json.loads(line) if line else {"error": f"it has ended.\n{self._printed()}"}
        if "error" in message:
            raise SystemExit(f"{self.name}: {message['error']}")
        self._signal(signal.SIGSTOP)
        return message["result"]

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _end(self) -> None:
        """Let it end with its pipe; what is left of its session after that is killed."""
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _printed(self) -> str:
        lines = Path(self._log.name).read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-_LOG_LINES:])

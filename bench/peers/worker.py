"""An engine in a process of its own, and of its own Python: started, called, halted while others are measured."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from bench.peers.session import Session

_ROOT = Path(__file__).parents[2]
_LOG_END = 3000
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


class Worker(Session):
    """A child of this process that answers calls while the context is open.

    It is halted (SIGSTOP, with its own children) but for its start and its calls, so that engines which wait busily
    take nothing from the one that is measured.

    Args:
        name: for messages.
        python: the interpreter that has what the module needs.
        module: its module in ``bench.peers``.
        arguments: of the module.
        environment: variables to set beside those of this process; the numbers of threads are never inherited.
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
        inherited = {key: value for key, value in os.environ.items() if key not in _UNSET}
        super().__init__(
            [python, "-m", f"bench.peers.{module}", *arguments],
            {**inherited, **(environment or {}), "PYTHONPATH": str(_ROOT)},
            folder=None,
            is_piped=True,
        )

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
        message = json.loads(line) if line else {"error": f"it has ended.\n{self._printed(_LOG_END)}"}
        if "error" in message:
            raise SystemExit(f"{self.name}: {message['error']}")
        self._signal(signal.SIGSTOP)
        return message["result"]

    def _wait_until_ready(self) -> None:
        self.receive()

    def _ask_to_end(self) -> None:
        assert self._process.stdin is not None
        self._signal(signal.SIGCONT)
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()  # it ends with its pipe

"""vLLM's server in a process of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

import httpcore2

from bench.peers.sides import MAX_PIXELS, VLLM_SETUPS, vllm_environment

_FLAGS = (
    "--served-model-name", "m", "--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "2048",
    "--max-num-seqs", "8", "--max-num-batched-tokens", "4096", "--enforce-eager", "--no-enable-prefix-caching",
    "--mm-processor-cache-gb", "0", "--skip-mm-profiling", "--limit-mm-per-prompt", '{"image":1,"video":0}',
    "--mm-processor-kwargs", f'{{"max_pixels":{MAX_PIXELS}}}',
)  # fmt: skip
_GRACE = 20.0
_LOG_END = 3000


class VllmServer:
    """``vllm serve`` in one of ``VLLM_SETUPS``, on a free port while the context is open.

    Attributes:
        url: where it serves.
        ready_seconds: from the start of the process until ``/health`` answered.
    """

    def __init__(self, python: str, folder: Path, setup: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        ranks, mode, _ = VLLM_SETUPS[setup]
        shared = ("--tensor-parallel-size", str(ranks), "--mm-encoder-tp-mode", mode)
        program = str(Path(python).with_name("vllm"))
        self._command = [program, "serve", str(folder), "--port", str(port), *_FLAGS, *shared]
        self._environment = {**os.environ, **vllm_environment(python, setup)}
        self.url = f"http://127.0.0.1:{port}"
        self.ready_seconds = 0.0

    def __enter__(self) -> VllmServer:
        self._log = tempfile.NamedTemporaryFile("w+", prefix="bench-peers-")
        start = time.perf_counter()
        self._process = subprocess.Popen(
            self._command,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            env=self._environment,
            cwd=tempfile.gettempdir(),
            start_new_session=True,
        )
        try:
            self._wait()
        except BaseException:
            self._end()
            raise
        self.ready_seconds = time.perf_counter() - start
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _wait(self) -> None:
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise SystemExit(f"vllm serve has ended:\n{Path(self._log.name).read_text()[-_LOG_END:]}")
            time.sleep(0.05)

    def _is_healthy(self) -> bool:
        try:
            return httpcore2.request("GET", f"{self.url}/health").status == 200
        except httpcore2.ConnectError:
            return False

    def _end(self) -> None:
        """Ask it to end; what is left of its session after that is killed."""
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

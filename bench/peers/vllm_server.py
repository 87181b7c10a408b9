"""vLLM's server in a process of its own."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from pathlib import Path

import httpcore2

from bench.peers.session import Session
from bench.peers.sides import MAX_PIXELS, VLLM_SETUPS, vllm_environment

_FLAGS = (
    "--served-model-name", "m", "--host", "127.0.0.1", "--dtype", "float32", "--max-model-len", "2048",
    "--max-num-seqs", "8", "--max-num-batched-tokens", "4096", "--enforce-eager", "--no-enable-prefix-caching",
    "--mm-processor-cache-gb", "0", "--skip-mm-profiling", "--limit-mm-per-prompt", '{"image":1,"video":0}',
    "--mm-processor-kwargs", f'{{"max_pixels":{MAX_PIXELS}}}',
)  # fmt: skip
_LOG_END = 3000


class VllmServer(Session):
    """``vllm serve`` in one of ``VLLM_SETUPS``, on a free port while the context is open.

    Attributes:
        url: where it serves.
    """

    def __init__(self, python: str, folder: Path, setup: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        ranks, mode, _ = VLLM_SETUPS[setup]
        shared = ("--tensor-parallel-size", str(ranks), "--mm-encoder-tp-mode", mode)
        program = str(Path(python).with_name("vllm"))
        self.url = f"http://127.0.0.1:{port}"
        super().__init__(
            [program, "serve", str(folder), "--port", str(port), *_FLAGS, *shared],
            {**os.environ, **vllm_environment(python, setup)},
            folder=Path(tempfile.gettempdir()),
            is_piped=False,
        )

    def _wait_until_ready(self) -> None:
        while not self._is_healthy():
            if self._process.poll() is not None:
                raise SystemExit(f"vllm serve has ended:\n{self._printed(_LOG_END)}")
            time.sleep(0.05)

    def _is_healthy(self) -> bool:
        try:
            return httpcore2.request("GET", f"{self.url}/health").status == 200
        except httpcore2.ConnectError:
            return False

    def _ask_to_end(self) -> None:
        self._process.terminate()

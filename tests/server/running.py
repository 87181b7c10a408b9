"""A real server on a free port of the loopback address, in a thread of the test's process."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import httpx2
import openai
import uvicorn

from chiasm.config.server import ServerConfig
from chiasm.server.admission import Admission
from chiasm.server.metrics import ServerMetrics
from chiasm.server.run import bind, make_server
from chiasm.server.state import ServerState
from chiasm.server.tracing import Tracing
from tests.clocks import PATIENCE, pass_time, wait_until
from tests.server.fake_engine import FakeEngine


class RunningServer:
    """Serves a fake engine while the context is open.

    Attributes:
        engine: what the server serves.
        state: of the server.
        loop: in which it runs.
        url: where.
        client: an HTTP client for it.
    """

    def __init__(self, *, tracing: Tracing | None = None, **settings: Any) -> None:
        self._tracing = tracing
        self.config = ServerConfig(model="org/fake-vl", port=0, **settings)
        self.engine = FakeEngine()
        self.loop: asyncio.AbstractEventLoop
        self.state: ServerState
        self.server: uvicorn.Server
        self._sock = bind(self.config.host, 0)
        self.host, self.port = self._sock.getsockname()[:2]
        self.url = f"http://{self.host}:{self.port}"
        self.client = httpx2.Client(base_url=self.url, timeout=PATIENCE, trust_env=False)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        admission = Admission(self.config.max_queue, self.config.max_body_bytes_in_flight)
        metrics = ServerMetrics(self.engine, admission)
        self.state = ServerState(self.engine, self.config, metrics, admission, self._tracing)
        self.server = make_server(self.state, self._started.set)
        await self.server.serve([self._sock])

    def __enter__(self) -> RunningServer:
        self._thread.start()
        assert self._started.wait(PATIENCE)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.server.should_exit = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "the server still waits for a request"

    def chat(self, content: Any = "Hi there", **fields: Any) -> httpx2.Response:
        """Post a conversation of one message."""
        body = {"messages": [{"role": "user", "content": content}], **fields}
        return self.client.post("/v1/chat/completions", json=body)

    def complete(self, prompt: Any = "Once upon", **fields: Any) -> httpx2.Response:
        """Post a prompt."""
        return self.client.post("/v1/completions", json={"prompt": prompt, **fields})

    def connect(self) -> socket.socket:
        """A plain connection, for what no HTTP client does."""
        return socket.create_connection((self.host, self.port), timeout=PATIENCE)

    def pass_time(self, seconds: float) -> None:
        """Let the server's timers find that so many seconds have passed, once it has read what clients have sent."""
        asyncio.run_coroutine_threadsafe(pass_time(seconds), self.loop).result(PATIENCE)

    def metric(self, name: str) -> float:
        """The value of one sample of ``/metrics``, by its name and labels as they are written there."""
        lines = self.client.get("/metrics").text.splitlines()
        return float(next(line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} ")))


@contextmanager
def as_new(server: RunningServer) -> Iterator[None]:
    """A test in which the server's engine is as new, and that must leave nothing behind in it."""
    server.engine.reset()
    yield
    wait_until(lambda: server.engine.is_idle)  # what a client has left unread may take a moment to end


def client_of(server: RunningServer) -> openai.OpenAI:
    """OpenAI's client, unmodified."""
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0)

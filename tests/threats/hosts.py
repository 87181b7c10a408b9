"""Hosts in threads: one that must see nobody, and one that does harm to those who download from it."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from urllib.parse import parse_qs, unquote, urlsplit

from tests.multimodal.encoded import noise

PICTURE = noise(56, 84)
_MOST_BYTES = 64 * 2**20  # that an endless answer has
_MOST_SECONDS = 20.0


class Canary:
    """Listens on every address of this machine while the context is open.

    Attributes:
        port: where.
        num_visitors: connections so far.
    """

    def __init__(self) -> None:
        if socket.has_dualstack_ipv6():
            self._sock = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._sock = socket.create_server(("", 0))
        self._sock.settimeout(0.1)
        self.port: int = self._sock.getsockname()[1]
        self.num_visitors = 0
        self._is_open = True
        self._thread = threading.Thread(target=self._accept)

    def _accept(self) -> None:
        while self._is_open:
            with contextlib.suppress(TimeoutError):
                connection, _ = self._sock.accept()
                self.num_visitors += 1
                connection.close()

    def __enter__(self) -> Canary:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self._thread.join()
        self._sock.close()


class _Handler(BaseHTTPRequestHandler):
    """Answers by the path of the URL."""

    server: HostileServer

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        self.server.num_requests += 1
        answers: dict[str, Callable[[], None]] = {
            "/picture.png": lambda: self._head(200, PICTURE),
            "/large.png": lambda: self._head(200, PICTURE + bytes(900_000)),
            "/packed.png": lambda: self._head(200, gzip.compress(bytes(50 * 2**20)), ("Content-Encoding", "gzip")),
            "/endless.png": self._endless,
            "/short.png": self._short,
            "/slow.png": self._slow,
            "/redirect": lambda: self._redirect(**{k: unquote(v[0]) for k, v in parse_qs(parts.query).items()}),
        }
        with contextlib.suppress(OSError):
            answers[parts.path]()
        self.close_connection = True

    def _head(self, status: int, body: bytes, *headers: tuple[str, str]) -> None:
        self.send_response_only(status)
        for name, value in (*headers, ("Content-Length", str(len(body)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _redirect(self, status: str, to: str) -> None:
        self._head(int(status), b"", ("Location", to))

    def _endless(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(_MOST_BYTES // 2**16):
            self.wfile.write(b"10000\r\n" + bytes(2**16) + b"\r\n")

    def _short(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\n" + PICTURE)

    def _slow(self) -> None:
        """A byte now and then; the head at first."""
        end = time.monotonic() + _MOST_SECONDS
        for byte in b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + bytes(1000):
            self.wfile.write(bytes([byte]))
            time.sleep(0.1)
            if time.monotonic() > end:
                return

    def log_message(self, *_: object) -> None:
        return


class HostileServer(ThreadingHTTPServer):
    """Counts its requests."""

    num_requests = 0
    daemon_threads = True


@contextlib.contextmanager
def hostile_host() -> Iterator[HostileServer]:
    """A host on loopback with a harmful answer for each path of ``_Handler``."""
    with HostileServer(("127.0.0.1", 0), _Handler) as host:
        thread = threading.Thread(target=host.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield host
        finally:
            host.shutdown()
            thread.join()

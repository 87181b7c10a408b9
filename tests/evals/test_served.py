"""A server that is asked in place of the offline engine, and what it may answer."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from chiasm.errors import UserError
from chiasm.evals import served

QUESTION = [{"role": "user", "content": "Hello"}]


class Scripted(BaseHTTPRequestHandler):
    """Answers every question with the next of the server's statuses."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.statuses.pop(0)  # type: ignore[attr-defined]
        body = json.dumps({"choices": [{"message": {"content": "Hi"}}]}).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.setattr(served, "_WAITS", (0.0, 0.0))
    with ThreadingHTTPServer(("127.0.0.1", 0), Scripted) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: ThreadingHTTPServer, *statuses: int) -> list[str]:
    server.statuses = list(statuses)  # type: ignore[attr-defined]
    return served.ask_server(f"http://127.0.0.1:{server.server_port}", "m", [QUESTION], [{}])


def test_a_busy_server_is_asked_again(server: ThreadingHTTPServer) -> None:
    assert ask(server, 503, 429, 200) == ["Hi"]


@pytest.mark.parametrize("statuses", [(503, 503, 429), (400,), (500,)])
def test_others_are_told_of(server: ThreadingHTTPServer, statuses: tuple[int, ...]) -> None:
    with pytest.raises(UserError, match=f"status {statuses[-1]}"):
        ask(server, *statuses)

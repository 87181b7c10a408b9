"""Clients that send by the byte: they keep a connection only for a while."""

from __future__ import annotations

import json
import socket
import time

import pytest

from chiasm.server import body, head_limit
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HELLO = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()


def trickle(server: RunningServer, data: bytes) -> bytes:
    """Send byte by byte until the server has had enough of it; what it answers."""
    with socket.create_connection((server.host, server.port), timeout=0.02) as sock:
        for byte in data:
            try:
                sock.sendall(bytes([byte]))
                answer = sock.recv(65536)
            except TimeoutError:
                continue
            else:
                return answer
    raise AssertionError("it waits for ever")


@pytest.mark.parametrize(
    "data", [b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 100, b"GET /" + b"a" * 500, b"\r\n" * 200]
)
def test_a_head_must_come_in_time(server: RunningServer, monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    """Threat: slow clients."""
    monkeypatch.setattr(head_limit, "HEAD_SECONDS", 0.3)
    start = time.monotonic()
    assert trickle(server, data).startswith(b"HTTP/1.1 408 ")
    assert time.monotonic() - start < 3


def test_a_connection_that_is_not_used_is_closed(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threat: slow clients."""
    monkeypatch.setattr(head_limit, "HEAD_SECONDS", 0.3)
    with socket.create_connection((server.host, server.port), timeout=5) as sock:
        assert sock.recv(65536) == b""


def test_the_head_of_a_second_request_too(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threat: slow clients."""
    monkeypatch.setattr(head_limit, "HEAD_SECONDS", 0.3)
    with socket.create_connection((server.host, server.port), timeout=5) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        sock.sendall(b"GET /health HTTP/1.1\r\nX: ")
        assert sock.recv(65536).startswith(b"HTTP/1.1 408 ")
        assert sock.recv(65536) == b""


def test_a_body_must_come_in_time(server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threat: slow clients."""
    monkeypatch.setattr(body, "_GRACE_SECONDS", 0.3)
    head = HEAD + b"Content-Length: 1000\r\n\r\n"
    start = time.monotonic()
    with socket.create_connection((server.host, server.port), timeout=0.02) as sock:
        sock.sendall(head)
        answer = b""
        while not answer and time.monotonic() - start < 5:
            try:
                sock.sendall(b" ")
                answer = sock.recv(65536)
            except TimeoutError:
                continue
        sock.settimeout(5)
        answer += b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer
    assert b"16384 bytes per second" in answer


def test_a_body_that_comes_steadily_may_take_longer(
    server: RunningServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body, "_GRACE_SECONDS", 0.5)
    monkeypatch.setattr(head_limit, "HEAD_SECONDS", 0.3)
    padded = HELLO + b" " * 40_000
    with socket.create_connection((server.host, server.port), timeout=10) as sock:
        sock.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % len(padded))
        for start in range(0, len(padded), 4_000):
            time.sleep(0.1)
            sock.sendall(padded[start : start + 4_000])
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert len(engine.conversations) == 1

"""Clients that send by the byte: they keep a connection only for a while."""

from __future__ import annotations

import contextlib
import json
import select
import socket

import pytest

from chiasm.server import body, head_limit
from tests.clocks import wait_until
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
HELLO = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()


def trickle(server: RunningServer, data: bytes, seconds: float) -> bytes:
    """Send a byte every so many seconds until the server has had enough of it; what it answers."""
    with server.connect() as sock:
        for byte in data:
            sock.sendall(bytes([byte]))
            server.pass_time(seconds)
            if select.select([sock], [], [], 0)[0]:
                return read_all(sock)
    raise AssertionError("it waits for ever")


def read_all(sock: socket.socket) -> bytes:
    """To the end, which is a reset if the server was still being sent something."""
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := sock.recv(65536):
            received += piece
    return received


@pytest.mark.parametrize(
    "data", [b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 100, b"GET /" + b"a" * 500, b"\r\n" * 200]
)
def test_a_head_must_come_in_time(server: RunningServer, data: bytes) -> None:
    """Threat: slow clients."""
    assert trickle(server, data, head_limit.HEAD_SECONDS / 100).startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_is_not_used_is_closed(server: RunningServer) -> None:
    """Threat: slow clients."""
    with server.connect() as sock:
        server.pass_time(head_limit.HEAD_SECONDS)
        assert sock.recv(65536) == b""


def test_the_head_of_a_second_request_too(server: RunningServer) -> None:
    """Threat: slow clients."""
    with server.connect() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        sock.sendall(b"GET /health HTTP/1.1\r\nX: ")
        server.pass_time(head_limit.HEAD_SECONDS)
        assert sock.recv(65536).startswith(b"HTTP/1.1 408 ")
        assert sock.recv(65536) == b""


def test_a_body_must_come_in_time(server: RunningServer) -> None:
    """Threat: slow clients."""
    answer = trickle(server, HEAD + b"Content-Length: 1000\r\n\r\n" + b" " * 900, body._GRACE_SECONDS / 200)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer
    assert b"16384 bytes per second" in answer


def test_a_body_that_comes_steadily_may_take_longer(server: RunningServer, engine: FakeEngine) -> None:
    """At a little more than the least bytes per second, for four times as long as one that trickles in."""
    piece = b" " * 100_000
    seconds_each = 0.95 * len(piece) / body._MIN_BYTES_PER_SECOND
    num_pieces = round(4 * body._GRACE_SECONDS / seconds_each)
    num_sent = 0

    def is_being_read() -> bool:
        return server.state.admission.num_body_bytes > num_sent - len(piece)

    with server.connect() as sock:
        length = len(HELLO) + num_pieces * len(piece)
        sock.sendall(HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % length + HELLO)
        for num_sent in range(len(HELLO), length, len(piece)):  # noqa: B007 - is_being_read looks at it
            wait_until(is_being_read)
            server.pass_time(seconds_each)
            sock.sendall(piece)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert len(engine.conversations) == 1

"""Clients that offer another protocol get what they asked for in this one."""

from __future__ import annotations

import http.client
import json
import socket

import pytest

from tests.server.running import RunningServer

_BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
_OFFER = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"


def status_of(sock: socket.socket) -> int:
    """Of the next answer, which is read to its end."""
    with http.client.HTTPResponse(sock) as response:
        response.begin()
        response.read()
        return response.status


def ask(sock: socket.socket, offer: bytes, cut: int, body: bytes) -> int:
    """The status of the answer to a request that is sent in two parts."""
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n" + offer + b"Content-Type: application/json\r\n"
    request = head + body
    sock.sendall(request[:cut])
    if cut < len(request):
        assert not is_readable(sock)
        sock.sendall(request[cut:])
    return status_of(sock)


def is_readable(sock: socket.socket) -> bool:
    sock.settimeout(0.05)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except TimeoutError:
        return False
    finally:
        sock.settimeout(10)


@pytest.mark.parametrize("offer", [_OFFER, b"Connection: upgrade\r\nUpgrade: websocket\r\n"])
@pytest.mark.parametrize("cut", [20, 250, 300, 9999])
@pytest.mark.parametrize("is_chunked", [False, True])
def test_an_offer_of_another_protocol_is_ignored(
    server: RunningServer, offer: bytes, cut: int, *, is_chunked: bool
) -> None:
    body = b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY
    if is_chunked:
        body = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(_BODY) + _BODY + b"\r\n0\r\n\r\n"
    with server.connect() as sock:
        for _ in range(2):  # the connection goes on
            assert ask(sock, offer, cut, body) == 200


def test_an_offer_without_a_body(server: RunningServer) -> None:
    with server.connect() as sock:
        for _ in range(2):
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n" + _OFFER + b"\r\n")
            assert status_of(sock) == 200

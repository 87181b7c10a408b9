"""A client that leaves frees what the engine holds for it, at whatever moment it leaves."""

from __future__ import annotations

import gc
import json
import socket
from typing import Any

import pytest

from chiasm.server.requests import ChatRequest
from tests.clocks import wait_until
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer


def start(server: RunningServer, path: str = "/v1/chat/completions", **fields: Any) -> socket.socket:
    """Send a request over a plain socket; the answer is left unread."""
    key = {"/v1/completions": {"prompt": ["a", "b"]}}.get(path, {"messages": [{"role": "user", "content": "Hi"}]})
    body = json.dumps({**key, **fields}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    sock = server.connect()
    sock.sendall(head.encode() + body)
    return sock


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_while_waiting_for_the_first_token(
    server: RunningServer, engine: FakeEngine, path: str, *, stream: bool
) -> None:
    engine.words_before_hold = 0
    num_prompts = 2 if path == "/v1/completions" else 1
    with start(server, path, stream=stream):
        wait_until(lambda: engine.num_generating == num_prompts)
    wait_until(lambda: engine.is_idle)
    assert engine.num_aborted == num_prompts


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_in_the_middle_of_an_answer(server: RunningServer, engine: FakeEngine, path: str, *, stream: bool) -> None:
    engine.words_before_hold = 2
    aborts = server.metric('chiasm:request_success_total{finished_reason="abort"}') if engine.num_aborted else None
    with start(server, path, stream=stream) as sock:
        if stream:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
        wait_until(lambda: bool(engine.request_ids))
    wait_until(lambda: engine.is_idle)
    assert engine.num_aborted > 0
    assert server.metric('chiasm:request_success_total{finished_reason="abort"}') > (aborts or 0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_while_the_prompt_is_prepared(server: RunningServer, engine: FakeEngine, path: str, *, stream: bool) -> None:
    """Threat: disconnect."""
    engine.holds_prepare = True
    with start(server, path, stream=stream):
        wait_until(lambda: engine.num_preparing == 1)
    wait_until(lambda: engine.is_idle)
    assert engine.request_ids == []


def requests_in_memory() -> list[ChatRequest]:
    """Some are held by what other tests raised: FastAPI remembers apps, and these have an engine."""
    return [each for each in gc.get_objects() if type(each) is ChatRequest]


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_waits_for_the_garbage_collector(server: RunningServer, engine: FakeEngine, *, stream: bool) -> None:
    engine.words_before_hold = 0
    gc.collect()
    gc.disable()
    of_others = len(requests_in_memory())
    try:
        with start(server, stream=stream):
            wait_until(lambda: engine.num_generating == 1)
        wait_until(lambda: len(requests_in_memory()) == of_others)
    finally:
        gc.enable()


def test_while_the_body_is_sent(server: RunningServer, engine: FakeEngine) -> None:
    with server.connect() as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"messages":'
        )
    assert server.chat().status_code == 200
    assert len(engine.conversations) == 1


def test_a_client_that_reads_nothing_and_leaves(server: RunningServer, engine: FakeEngine) -> None:
    engine.words = ("word " * 2000,) * 2000  # more than the buffers of both sides take
    with start(server, stream=True):
        wait_until(lambda: engine.num_generating == 1)
    wait_until(lambda: engine.is_idle)
    assert engine.num_aborted == 1


def test_others_are_not_disturbed(server: RunningServer, engine: FakeEngine) -> None:
    engine.words_before_hold = 2
    sockets = [start(server, stream=True) for _ in range(4)]
    wait_until(lambda: engine.num_generating == 4)
    for sock in sockets[:2]:
        sock.close()
    wait_until(lambda: engine.num_generating == 2)
    engine.words_before_hold = None
    for sock in sockets[2:]:
        received = b""
        while b"[DONE]" not in received:
            received += sock.recv(65536)
        sock.close()
    assert engine.num_aborted == 2


def test_pipelined_requests_are_answered_in_turn(server: RunningServer) -> None:
    request = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
    with server.connect() as sock:
        sock.sendall(request * 3)
        received = b""
        while received.count(b"HTTP/1.1 200 ") < 3:
            received += sock.recv(65536)

"""What a server does when it has too much to do, or when something takes too long: it says so, at once or in time."""

from __future__ import annotations

import contextlib
import socket
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat

import openai
import pytest

from chiasm.server import read_limit
from chiasm.server.admission import Admission
from chiasm.server.body import validate
from chiasm.server.requests import ChatRequest
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer, client_of, wait_until
from tests.server.test_chat import events_of
from tests.server.test_disconnect import start
from tests.server.test_errors import error_of

_REFUSED = 'chiasm:admission_rejections_total{{reason="{}"}}'


@contextlib.contextmanager
def holding(server: RunningServer, num_answers: int) -> Iterator[None]:
    """While so many answers are being made, without end."""
    engine = server.engine
    engine.words_before_hold = 0
    with ThreadPoolExecutor() as threads:
        answers = threads.submit(server.complete, ["a"] * num_answers)
        wait_until(lambda: engine.num_generating == num_answers)
        try:
            yield
        finally:
            engine.words_before_hold = None
        assert answers.result().status_code == 200


def test_a_full_server_turns_requests_away() -> None:
    with RunningServer(max_queue=3) as server:
        for answer, param in ((server.complete(["a", "b"], n=2), "prompt"), (server.chat(n=4), "n")):
            error = error_of(answer, 400)
            assert (
                error["message"] == f"{param} asks for 4 answers; at most 3 may be asked for at a time (max_queue)."
            )
            assert (error["param"], "retry-after" in answer.headers) == (param, False)
        with holding(server, 2):
            response = server.chat(n=2)
            assert error_of(response, 503)["message"] == "The server is busy: at most 3 answers at a time."
            assert 1 <= int(response.headers["retry-after"]) <= 60
            assert server.metric(_REFUSED.format("queue")) == 1
            assert server.metric("chiasm:answers_in_flight") == 2
        assert server.engine.conversations == [], "what is refused is not prepared"
        for _ in range(3):  # places are given back
            assert server.chat(n=3).status_code == 200


def test_a_full_server_does_not_wait_for_a_body() -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with RunningServer(max_queue=1) as server, holding(server, 1):
        with socket.create_connection((server.host, server.port), timeout=10) as sock:
            sock.sendall(head + b"Content-Length: 50000000\r\n\r\n{")
            received = sock.recv(65536)
            assert received.startswith(b"HTTP/1.1 503 ")
            assert b"retry-after: " in received.lower()
        assert server.client.get("/health").status_code == 200, "who only asks is let in"


def test_when_to_come_back_follows_the_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    admission = Admission(max_answers=10, max_body_bytes=1)
    for _ in range(20):  # one ends every three seconds
        with admission.admit(1):
            now += 3
    with admission.admit(10):
        for num_answers, seconds in ((1, 3), (4, 12), (10, 30)):
            with pytest.raises(Exception, match="busy") as caught, admission.admit(num_answers):
                pass
            assert caught.value.retry_after == pytest.approx(seconds, abs=2)  # type: ignore[attr-defined]
        now += 10_000
        with pytest.raises(Exception, match="busy") as caught, admission.admit(10):
            pass
        assert caught.value.retry_after == 60  # type: ignore[attr-defined]


def test_bodies_that_together_are_too_large() -> None:
    """Those of requests that wait are counted, as they arrive and until their answers are sent."""
    with RunningServer(max_body_bytes=20_000, max_body_bytes_in_flight=30_000) as server:
        server.engine.words_before_hold = 0
        with start(server, padding="x" * 18_000):
            wait_until(lambda: server.engine.num_generating == 1)
            assert server.metric("chiasm:body_bytes_in_flight") > 18_000
            error = error_of(server.chat("x" * 18_000), 503)
            assert error["message"] == "The server is busy: bodies of at most 30000 bytes at a time."
            chunks = (b"x" * 1000 for _ in range(19))
            response = server.client.post(
                "/v1/completions", content=chunks, headers={"content-type": "application/json"}
            )
            assert error_of(response, 503)["message"] == error["message"]
            assert server.metric(_REFUSED.format("bodies")) == 2
            error_of(server.chat("x" * 30_000), 413)  # which no waiting would help
        wait_until(lambda: server.metric("chiasm:body_bytes_in_flight") == 0)
        server.engine.words_before_hold = None
        assert server.chat("x" * 18_000).status_code == 200


def test_an_engine_without_a_sign_of_life_gets_no_further_requests(server: RunningServer) -> None:
    server.engine.is_alive = False
    try:
        response = server.chat()
    finally:
        server.engine.is_alive = True
    assert error_of(response, 503)["message"] == "The engine shows no sign of life; it may come back."
    assert response.headers["retry-after"] == "1"


def test_values_count_as_the_memory_that_they_take(server: RunningServer) -> None:
    """Threat: amplification: eight bytes of JSON become two hundred of memory."""
    server.engine.words_before_hold = 0
    with start(server, padding=[{"a": 0}] * 1000):
        wait_until(lambda: server.engine.num_generating == 1)
        assert 200_000 < server.metric("chiasm:body_bytes_in_flight") < 400_000


def test_what_nobody_reads_is_not_kept_with_a_request(server: RunningServer) -> None:
    fields = {"messages": [{"role": "user", "content": "Hi"}], "padding": [{}]}
    assert not validate(ChatRequest, fields, server.state).model_extra


@pytest.fixture(scope="module")
def small_server() -> Iterator[RunningServer]:
    """A server that takes bodies of at most 10,000 bytes."""
    with RunningServer(max_body_bytes=10_000) as server:
        yield server


@pytest.fixture(scope="module")
def hasty_server() -> Iterator[RunningServer]:
    """A server on which no request may take longer than 0.3 s."""
    with RunningServer(request_timeout=0.3) as server:
        yield server


@pytest.mark.parametrize("stage", ["prepare", "generate"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long(hasty_server: RunningServer, stage: str, *, stream: bool) -> None:
    engine = hasty_server.engine
    engine.reset()
    engine.holds_prepare = stage == "prepare"
    engine.words_before_hold = 0
    response = hasty_server.chat(stream=stream)
    error = error_of(response, 504)
    assert error["message"] == "The request took longer than 0.3 s, the limit of this server (request_timeout)."
    assert response.headers["x-should-retry"] == "false"
    wait_until(lambda: engine.is_idle)


def test_a_stream_that_takes_too_long(hasty_server: RunningServer) -> None:
    engine = hasty_server.engine
    engine.reset()
    engine.words_before_hold = 2
    response = hasty_server.chat(stream=True)
    assert response.status_code == 200
    *_, last = events_of(response.text)
    assert last["error"]["code"] == 504
    assert response.text.endswith("data: [DONE]\n\n")
    wait_until(lambda: engine.is_idle)
    assert engine.num_aborted == 1


def test_openai_does_not_try_again_what_took_too_long(hasty_server: RunningServer) -> None:
    hasty_server.engine.reset()
    hasty_server.engine.words_before_hold = 0
    with client_of(hasty_server).with_options(max_retries=2) as client, pytest.raises(openai.InternalServerError):
        client.chat.completions.create(model="org/fake-vl", messages=[{"role": "user", "content": "Hi"}])
    assert len(hasty_server.engine.conversations) == 1


def test_a_body_that_takes_too_long(hasty_server: RunningServer) -> None:
    with socket.create_connection((hasty_server.host, hasty_server.port), timeout=10) as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"messages":'
        )
        received = sock.recv(65536)
        assert received.startswith(b"HTTP/1.1 504 ")
        assert b"connection: close" in received


def test_a_client_that_never_reads_is_given_up(
    server: RunningServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stays connected, reads nothing of a long answer, and holds neither memory nor a place for ever."""
    monkeypatch.setattr(read_limit, "STALLED_SECONDS", 0.2)
    engine.words = ("word " * 2000,) * 2000  # more than the buffers of both sides take
    with start(server, stream=True) as sock:
        wait_until(lambda: engine.num_generating == 1)
        wait_until(lambda: engine.is_idle)
        assert engine.num_aborted == 1
        received = b"".join(iter(lambda: sock.recv(1 << 20), b""))
        assert b"[DONE]" not in received, "the connection is closed in the middle"


def test_a_client_that_reads_slowly_gets_everything(
    server: RunningServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_limit, "STALLED_SECONDS", 0.2)
    engine.words = ("word " * 2000,) * 800
    with start(server, stream=True) as sock:
        received, end = 0, b""
        while b"[DONE]" not in end:
            piece = sock.recv(1 << 20)
            assert piece
            received, end = received + len(piece), (end + piece)[-100:]
            time.sleep(0.05)
    assert received > 800 * 10_000


@pytest.mark.parametrize("wish", ["keep-alive", "close"])
def test_who_sends_first_and_reads_then_hears_that_it_is_too_much(small_server: RunningServer, wish: str) -> None:
    """Most clients do. A connection that is closed with a part of a body unread takes the answer with it."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: {wish}\r\n"
    with socket.create_connection((small_server.host, small_server.port), timeout=10) as sock:
        sock.sendall(head.encode() + b"Content-Length: 20000000\r\n\r\n" + b"x" * 20_000_000)
        time.sleep(0.05)
        received = b"".join(iter(lambda: sock.recv(65536), b""))
        assert received.startswith(b"HTTP/1.1 413 ")
        assert received.count(b"HTTP/1.1") == 1


def test_a_body_without_end_is_not_dropped_for_ever(
    small_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_limit, "LINGER_SECONDS", 0.2)
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with socket.create_connection((small_server.host, small_server.port), timeout=10) as sock:
        sock.sendall(head + b"Content-Length: 20000000\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")
        with pytest.raises(ConnectionError):
            deque(map(sock.sendall, repeat(b"x" * 1000, 100_000)), maxlen=0)

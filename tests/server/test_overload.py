"""What a server does when it has too much to do, or when something takes too long: it says so, at once or in time."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import TypeVar

import httpx2
import openai
import pytest

from chiasm.server import body, read_limit
from chiasm.server.admission import Admission
from chiasm.server.body import validate
from chiasm.server.requests import ChatRequest
from tests.clocks import PATIENCE, wait_until
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer, as_new, client_of
from tests.server.test_disconnect import start
from tests.server.test_errors import error_of

T = TypeVar("T")

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
        with server.connect() as sock:
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
def _limited_server() -> Iterator[RunningServer]:
    with RunningServer(request_timeout=1000.5) as server:
        yield server


@pytest.fixture
def limited_server(_limited_server: RunningServer) -> Iterator[RunningServer]:
    """A server on which no request may take longer than 1000.5 s, as new."""
    with as_new(_limited_server):
        yield _limited_server


def answer_after(server: RunningServer, seconds: float, ask: Callable[[], T]) -> T:
    """What is answered to a request that still waits for the engine when so many seconds have passed."""
    engine = server.engine
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask)
        wait_until(lambda: bool(engine.num_preparing or engine.num_generating))
        server.pass_time(seconds)
        return answer.result(PATIENCE)


@pytest.mark.parametrize("stage", ["prepare", "generate"])
@pytest.mark.parametrize("stream", [False, True])
def test_a_request_that_takes_too_long(limited_server: RunningServer, stage: str, *, stream: bool) -> None:
    engine = limited_server.engine
    engine.holds_prepare = stage == "prepare"
    engine.words_before_hold = 0
    response = answer_after(limited_server, 1001, lambda: limited_server.chat(stream=stream))
    error = error_of(response, 504)
    assert error["message"] == "The request took longer than 1000.5 s, the limit of this server (request_timeout)."
    assert response.headers["x-should-retry"] == "false"
    wait_until(lambda: engine.is_idle)


def test_a_request_that_takes_nearly_too_long(limited_server: RunningServer) -> None:
    engine = limited_server.engine
    engine.words_before_hold = 0

    def ask() -> httpx2.Response:
        return limited_server.chat()

    with ThreadPoolExecutor() as threads:
        answer = threads.submit(ask)
        wait_until(lambda: engine.num_generating == 1)
        limited_server.pass_time(900)
        engine.words_before_hold = None
        assert answer.result(PATIENCE).status_code == 200


def test_a_stream_that_takes_too_long(limited_server: RunningServer) -> None:
    engine = limited_server.engine
    engine.words_before_hold = 2
    with start(limited_server, stream=True) as sock:
        received = b""
        while b"Hello" not in received:
            received += sock.recv(65536)
        limited_server.pass_time(1001)
        while not received.endswith(b"\r\n0\r\n\r\n"):
            received += sock.recv(65536)
    assert received.startswith(b"HTTP/1.1 200 ")
    assert b'"code":504' in received
    assert b"data: [DONE]\n\n" in received.partition(b'"code":504')[2]
    wait_until(lambda: engine.is_idle)
    assert engine.num_aborted == 1


def test_openai_does_not_try_again_what_took_too_long(limited_server: RunningServer) -> None:
    limited_server.engine.words_before_hold = 0
    hello = [{"role": "user", "content": "Hi"}]
    with client_of(limited_server).with_options(max_retries=2) as client, pytest.raises(openai.InternalServerError):
        answer_after(
            limited_server,
            1001,
            lambda: client.chat.completions.create(model="org/fake-vl", messages=hello),  # type: ignore[arg-type]
        )
    assert len(limited_server.engine.conversations) == 1


def test_a_body_that_takes_too_long(limited_server: RunningServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body, "_GRACE_SECONDS", 2000.0)
    with limited_server.connect() as sock:
        sock.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            b'Content-Length: 1000\r\n\r\n{"messages":'
        )
        wait_until(lambda: limited_server.state.admission.num_body_bytes > 0)
        limited_server.pass_time(1001)
        received = sock.recv(65536)
        assert received.startswith(b"HTTP/1.1 504 ")
        assert b"connection: close" in received


def test_a_client_that_never_reads_is_given_up(server: RunningServer, engine: FakeEngine) -> None:
    """It stays connected, reads nothing of a long answer, and holds neither memory nor a place for ever."""
    engine.words = ("word " * 2000,) * 2000  # more than the buffers of both sides take
    with start(server, stream=True) as sock:
        wait_until(lambda: engine.num_generating == 1)

        def is_given_up() -> bool:
            server.pass_time(read_limit.STALLED_SECONDS / 10)
            return engine.is_idle

        wait_until(is_given_up)
        assert engine.num_aborted == 1
        received = b"".join(iter(lambda: sock.recv(1 << 20), b""))
        assert b"[DONE]" not in received, "the connection is closed in the middle"


def test_a_client_that_reads_slowly_gets_everything(server: RunningServer, engine: FakeEngine) -> None:
    """However long that takes, as long as it doesn't stop."""
    engine.words = ("word " * 2000,) * 800
    with start(server, stream=True) as sock:
        received, end, seconds = 0, b"", 0.0
        while b"[DONE]" not in end:
            piece = sock.recv(1 << 20)
            assert piece
            received, end = received + len(piece), (end + piece)[-100:]
            # What is read makes room for more, after a turn or a few of the server's.
            server.pass_time(read_limit.STALLED_SECONDS / 6)
            seconds += read_limit.STALLED_SECONDS / 6
    assert received > 800 * 10_000
    assert seconds > read_limit.STALLED_SECONDS


@pytest.mark.parametrize("wish", ["keep-alive", "close"])
def test_who_sends_first_and_reads_then_hears_that_it_is_too_much(small_server: RunningServer, wish: str) -> None:
    """Most clients do. A connection that is closed with a part of a body unread takes the answer with it."""
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nConnection: {wish}\r\n"
    with small_server.connect() as sock:
        sock.sendall(head.encode() + b"Content-Length: 20000000\r\n\r\n" + b"x" * 20_000_000)
        received = b"".join(iter(lambda: sock.recv(65536), b""))
        assert received.startswith(b"HTTP/1.1 413 ")
        assert received.count(b"HTTP/1.1") == 1


def test_a_body_without_end_is_dropped_for_a_while_only(small_server: RunningServer) -> None:
    """Until then nothing is reset, however much is sent."""
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    with small_server.connect() as sock:
        sock.sendall(head + b"Content-Length: 20000000\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 413 ")
        small_server.pass_time(read_limit.LINGER_SECONDS - 10)
        sock.sendall(b"x" * 10_000_000)
        small_server.pass_time(20)
        with pytest.raises(ConnectionError):
            deque(map(sock.sendall, repeat(b"x" * 1000)), maxlen=0)

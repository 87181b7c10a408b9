"""A real server on two ranks that is asked for the impossible, left in the middle and hit from the side."""

from __future__ import annotations

import argparse
import asyncio
import base64
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.idle import HELD, await_idle
from bench.media_host import MediaHost
from bench.mutations import mutate
from bench.serving import BenchServer
from bench.soak import server_settings, soak
from bench.soak_requests import CHAT, Mix, chat, good_bodies, media, text, text_of
from bench.wire import Response, Target, exchange, get, post_json
from chiasm.config.built_in import BUILT_IN_EXAMPLE
from tests.clocks import PATIENCE

BARS = BUILT_IN_EXAMPLE.picture.read_bytes()


class HostedServer:
    """A server of the built-in model beside a host of media, both in one event loop's reach.

    Attributes:
        loop: of the host.
        host: of media, which the server admits.
        server: itself.
    """

    def __init__(self, loop: asyncio.Runner, host: MediaHost, server: BenchServer) -> None:
        self.loop = loop
        self.host = host
        self.server = server
        self.target = Target.of(server.url)

    def run(self, work: Awaitable[Any]) -> Any:
        """Do something where the host is served."""

        async def bounded() -> Any:
            async with asyncio.timeout(120):
                return await work

        return self.loop.run(bounded())


@pytest.fixture(scope="module")
def hosted() -> Iterator[HostedServer]:
    with asyncio.Runner() as loop:
        host = MediaHost(BARS)
        loop.run(host.__aenter__())
        try:
            # Steps of little encoding, so that requests are left amid units, too.
            settings = [*server_settings(host, request_timeout=20), "--encoder-step-budget-ms", "4"]
            with BenchServer(*settings) as server:
                yield HostedServer(loop, host, server)
                assert server.stop() == 0
        finally:
            loop.run(host.__aexit__(None, None, None))


@pytest.fixture(autouse=True)
def _idle_afterwards(hosted: HostedServer) -> Iterator[None]:
    """Whatever a test does, nothing is held in the end."""
    yield
    assert await_idle(hosted.server.metrics) == {}


async def _leave_after(target: Target, request: bytes, seconds: float) -> None:
    """Send everything, and go away later."""
    _, writer = await asyncio.open_connection(*target)
    writer.write(request)
    await asyncio.sleep(seconds)
    writer.transport.abort()


@asynccontextmanager
async def _long_answer(target: Target) -> AsyncIterator[None]:
    """While a long answer is streamed to somebody who reads it, and who leaves in the end."""
    body = chat(text("Count."), max_tokens=3000, ignore_eos=True, stream=True)
    reader, writer = await asyncio.open_connection(*target)
    writer.write(post_json(CHAT, body))
    assert b" 200 " in await reader.readline()

    async def read() -> None:
        while await reader.read(65536):
            continue

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()
        writer.transport.abort()


_PICTURE = media("image", f"data:image/png;base64,{base64.b64encode(BARS).decode()}")


def _requests(hosted: HostedServer) -> dict[str, bytes]:
    """By what is special about them."""
    question = text("Which bar is the largest?")
    video = good_bodies(0, hosted.host)[2]["messages"][0]["content"][0]
    words = " ".join(map(str, range(700)))
    form = {"response_format": {"type": "json_object"}, "max_tokens": 30}
    prompts = {"prompt": ["a", "b c", "d"], "max_tokens": 40, "n": 2, "temperature": 1}
    return {
        "whole": post_json(CHAT, chat(_PICTURE, question)),
        "stream": post_json(CHAT, chat(_PICTURE, question, stream=True, max_tokens=60, ignore_eos=True)),
        "from a host": post_json(CHAT, chat(media("image", hosted.host.url("picture")), question)),
        "silent host": post_json(CHAT, chat(media("image", hosted.host.url("silent")), question)),
        "video": post_json(CHAT, chat(video, question)),
        "several answers": post_json(CHAT, chat(_PICTURE, question, n=3, temperature=1, max_tokens=40)),
        "several prompts": post_json("/v1/completions", prompts),
        "long prompt": post_json(CHAT, chat(text(words), max_tokens=4)),
        "form": post_json(CHAT, chat(question, **form)),
    }


@pytest.mark.parametrize(
    "name",
    [
        "whole",
        "stream",
        "from a host",
        "silent host",
        "video",
        "several answers",
        "several prompts",
        "long prompt",
        "form",
    ],
)
def test_a_client_that_leaves_at_any_moment_leaves_nothing(hosted: HostedServer, name: str) -> None:
    """While somebody else's answer goes on, so that units are encoded over several steps."""
    request = _requests(hosted)[name]

    async def sweep() -> None:
        async with _long_answer(hosted.target):
            start = time.perf_counter()
            answer = await exchange(hosted.target, request, 60)
            assert answer.status == (422 if name == "silent host" else 200), answer.body
            whole = min(1.0, time.perf_counter() - start)
            await asyncio.gather(
                *(_leave_after(hosted.target, request, whole * step / 12) for step in range(12)),
            )

    hosted.run(sweep())
    assert await_idle(hosted.server.metrics) == {}


def _answers(hosted: HostedServer, requests: list[bytes], meanwhile: Callable[[], None]) -> list[Response]:
    async def ask() -> list[Response]:
        asking = [asyncio.create_task(exchange(hosted.target, request, 60)) for request in requests]
        await asyncio.sleep(0.02)
        meanwhile()
        return await asyncio.gather(*asking)

    return hosted.run(ask())


def _workers(server: BenchServer) -> list[psutil.Process]:
    return [p for p in psutil.Process(server.pid).children() if "chiasm.multimodal.worker" in p.cmdline()]


def test_bad_pictures_and_a_dead_worker_fail_nobody_else(hosted: HostedServer) -> None:
    """Good requests beside bad ones, while the process that decodes pictures is killed."""
    bodies = good_bodies(6, hosted.host)
    alone = [text_of(hosted.run(exchange(hosted.target, post_json(CHAT, body), 60))) for body in bodies]
    mix = Mix(list(zip(bodies, alone, strict=True)), hosted.host, random.Random(0))
    bad = [mix.bad[name][0] for name in ("garbage picture", "bomb", "picture cut short", "garbage video")]
    good = [post_json(CHAT, body) for body in bodies]
    (worker,) = _workers(hosted.server)
    answers = _answers(hosted, [*good, *bad], lambda: os.kill(worker.pid, signal.SIGKILL))
    assert {answer.status for answer in answers[len(good) :]} <= {400, 422}
    crashed = [answer for answer in answers[: len(good)] if answer.status != 200]
    assert len(crashed) <= 1, "only what the worker had in hand"
    assert all(b"its decoder crashed" in answer.body for answer in crashed)
    got = [text_of(answer) if answer.status == 200 else None for answer in answers[: len(good)]]
    assert all(text in (None, expected) for text, expected in zip(got, alone, strict=True))
    assert [text_of(hosted.run(exchange(hosted.target, request, 60))) for request in good] == alone


def test_a_short_soak(hosted: HostedServer) -> None:
    options = argparse.Namespace(requests=60, concurrency=16, charts=6, seed=6)
    outcome = hosted.run(soak(hosted.server, hosted.host, options))
    assert outcome.faults == []
    assert outcome.done == 60
    assert outcome.counts.keys() >= {"good, whole", "good, streamed", "leaves", "silent video", "long stream"}


def test_some_mutations(hosted: HostedServer) -> None:
    options = argparse.Namespace(requests=150, concurrency=8, seed=7)
    outcome = hosted.run(mutate(hosted.server, options))
    assert outcome.faults == []
    assert outcome.done == 150


def test_what_is_held_is_told(hosted: HostedServer) -> None:
    """The check of all the others can fail."""

    async def hold() -> dict[str, float]:
        async with _long_answer(hosted.target):
            return await asyncio.to_thread(await_idle, hosted.server.metrics, 0.3)

    held = hosted.run(hold())
    assert {"chiasm:answers_in_flight", "chiasm:num_requests_running", "chiasm:kv_cache_usage_perc"} <= held.keys()
    assert held.keys() <= set(HELD)


def _what_is_of(server: BenchServer) -> tuple[list[psutil.Process], set[Path]]:
    """A server's processes below the main one, and its folders."""
    family = psutil.Process(server.pid).children(recursive=True)
    parts = (Path(part) for process in family for part in process.cmdline())
    return family, {part for part in parts if part.name.startswith("chiasm-") and part.is_dir()}


def _assert_nothing_stays(family: list[psutil.Process], folders: set[Path]) -> None:
    assert folders
    _, alive = psutil.wait_procs(family, timeout=PATIENCE)
    assert not alive
    assert not any(folder.exists() for folder in folders)


async def _begin_long_stream(target: Target) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Of many answers at a time, so that it takes long on a fast machine, too."""
    reader, writer = await asyncio.open_connection(*target)
    many = {"n": 16, "temperature": 1}
    writer.write(post_json(CHAT, chat(text("Count."), max_tokens=3900, ignore_eos=True, stream=True) | many))
    await reader.readuntil(b"data: ")
    return reader, writer


async def _wait_until_closing(target: Target) -> None:
    """Until the server has heard a signal, and takes nothing new."""
    while (await get(target, "/health")).status != 503:  # noqa: ASYNC110 - it is told of no event
        await asyncio.sleep(0.01)


def test_sigterm_drains_then_aborts_and_leaves_nothing() -> None:
    """With a connection that a client keeps open, and an answer that takes longer than it gets."""

    async def end(server: BenchServer) -> bytes:
        target = Target.of(server.url)
        kept, keeping = await asyncio.open_connection(*target)
        keeping.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (await kept.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
        reader, writer = await _begin_long_stream(target)
        os.kill(server.pid, signal.SIGTERM)
        await _wait_until_closing(target)
        refused = await exchange(target, post_json(CHAT, chat(text("Hi"))), PATIENCE)
        assert (refused.status, "retry-after" in refused.headers) == (503, True)
        rest = await asyncio.wait_for(reader.read(-1), PATIENCE)
        assert await asyncio.wait_for(kept.read(-1), PATIENCE) == b""
        writer.close()
        keeping.close()
        return rest

    with BenchServer("-tp", "2", "--shutdown-timeout", "1.5") as server:
        family, folders = _what_is_of(server)
        assert len(family) >= 4
        rest = asyncio.run(end(server))
        assert b'"code":503' in rest
        assert b"data: [DONE]" in rest
        assert server.wait() == 0
        _assert_nothing_stays(family, folders)
        assert "Traceback" not in server.printed()


def test_a_second_signal_ends_a_real_server_at_once() -> None:
    async def end(server: BenchServer) -> bytes:
        target = Target.of(server.url)
        reader, writer = await _begin_long_stream(target)
        os.kill(server.pid, signal.SIGTERM)
        await _wait_until_closing(target)
        os.kill(server.pid, signal.SIGINT)
        rest = await asyncio.wait_for(reader.read(-1), PATIENCE)
        writer.close()
        return rest

    with BenchServer("--shutdown-timeout", "600") as server:
        family, folders = _what_is_of(server)
        assert b'"code":503' in asyncio.run(end(server)), "the answer is cut short"
        assert server.wait() == 0
        _assert_nothing_stays(family, folders)


def test_sigterm_while_ranks_load_leaves_nothing() -> None:
    command = [sys.executable, "-m", "chiasm.cli", "serve", "-tp", "2", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        family: list[psutil.Process] = []
        while len(family) < 4:
            family = psutil.Process(process.pid).children(recursive=True)
            assert process.poll() is None
        folders = {Path(part) for one in family for part in one.cmdline() if Path(part).name.startswith("chiasm-")}
        process.terminate()
        assert process.wait(PATIENCE) == 0
        _assert_nothing_stays(family, folders)

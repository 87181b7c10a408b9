from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from chiasm.config.engine import EngineConfig
from chiasm.dist.channel import Channel
from chiasm.engine.frontend import client as module
from chiasm.engine.frontend.client import CoreClient
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.errors import EngineDeadError, UserError
from chiasm.schema.output import EngineStats, SequenceDelta
from chiasm.schema.profile import EngineProfile
from chiasm.schema.request import EngineRequest
from chiasm.schema.sampling import SamplingParams
from chiasm.schema.wire import (
    AbortRequests,
    AddRequest,
    Failed,
    FromCore,
    Outputs,
    ProfileFailed,
    ProfileStarted,
    ProfileTaken,
    Ready,
    Shutdown,
    StartCore,
    StartProfile,
    StopProfile,
    ToCore,
)
from tests.clocks import PATIENCE, pass_time, until
from tests.engine.frontend.support import make_facts


class FakeChild:
    """A core process that is none."""

    def __init__(self) -> None:
        self.pid = 0
        self.pid = -1
        self.status: int | None = None
        self.is_stopped = False

    def poll(self) -> int | None:
        return self.status

    def wait(self, timeout: float) -> int:
        return 0

    def stop(self, grace: float) -> None:
        self.is_stopped = True

    def kill(self) -> None:
        self.status = -9


class FakeCore:
    """The other end of the client's channel, told what to say by the test."""

    def __init__(self, runtime_dir: Path) -> None:
        self.child = FakeChild()
        self._channel: Channel[ToCore] = Channel(runtime_dir, "core", ToCore, is_binding=False)

    async def hear(self) -> ToCore:
        message = await asyncio.to_thread(self._channel.receive, PATIENCE)
        assert message is not None, "the client said nothing"
        return message

    def say(self, message: FromCore) -> None:
        self._channel.send(message)

    def say_bytes(self, data: bytes) -> None:
        self._channel.socket.send(data)

    def deltas(self, *deltas: SequenceDelta) -> None:
        self.say(Outputs(deltas, EngineStats(num_running=5)))

    def close(self) -> None:
        self._channel.close()


Scenario = Callable[[CoreClient, FakeCore], Any]
REQUEST = EngineRequest("a", (1, 2), (), SamplingParams())


def run(scenario: Scenario, folder: Path, monkeypatch: pytest.MonkeyPatch, first: FromCore) -> None:
    """Run a scenario with a client and a core whose first word is ``first``."""

    @asynccontextmanager
    async def pair() -> AsyncIterator[tuple[CoreClient, FakeCore]]:
        client, core = CoreClient(folder), FakeCore(folder)
        monkeypatch.setattr(module, "start_child", lambda *args, **kwargs: core.child)
        try:
            core.say(first)
            yield client, core
        finally:
            if not core.child.is_stopped:
                core.child.status = core.child.status or 0  # it ends when asked
                await client.close()
            core.close()

    async def whole() -> None:
        async with pair() as (client, core):
            await scenario(client, core)

    asyncio.run(whole())


@pytest.fixture
def ready(tokenizer: Tokenizer) -> Ready:
    return Ready(make_facts(tokenizer), 64, ("a line",), ())


async def start(client: CoreClient, core: FakeCore) -> None:
    """Start the client, whose first word the core hears."""
    await client.start(EngineConfig(model="m"))
    assert await core.hear() == StartCore(EngineConfig(model="m"))


async def next_of(news: asyncio.Queue[SequenceDelta]) -> SequenceDelta:
    return await asyncio.wait_for(news.get(), 5)


def test_a_sequence_hears_its_own_news_until_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: Ready
) -> None:
    async def scenario(client: CoreClient, core: FakeCore) -> None:
        assert await client.start(EngineConfig(model="m")) == ready
        await core.hear()
        news: dict[str, asyncio.Queue[SequenceDelta]] = {"a": asyncio.Queue(), "b": asyncio.Queue()}
        for name, queue in news.items():
            request = EngineRequest(name, (1,), (), SamplingParams())
            await client.add(request, queue.put_nowait)
            assert await core.hear() == AddRequest(request)
        first, other = SequenceDelta("a", (7,)), SequenceDelta("b", (8,))
        last = SequenceDelta("a", (9,), finish_reason="length")
        core.deltas(first, other, last)
        assert [await next_of(news["a"]), await next_of(news["a"]), await next_of(news["b"])] == [first, last, other]
        assert client.stats.num_running == 5
        await client.abort(("b",))
        assert await core.hear() == AbortRequests(("b",))
        await client.abort(())
        core.child.status = 0
        await client.close()
        assert await core.hear() == Shutdown()
        assert core.child.is_stopped

    run(scenario, tmp_path, monkeypatch, ready)


@pytest.mark.parametrize(("is_user_error", "kind"), [(True, UserError), (False, EngineDeadError)])
def test_a_core_that_cant_start_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_user_error: bool, kind: type[Exception]
) -> None:
    async def scenario(client: CoreClient, core: FakeCore) -> None:
        with pytest.raises(kind, match="no such model"):
            await client.start(EngineConfig(model="m"))

    run(scenario, tmp_path, monkeypatch, Failed("no such model", is_user_error=is_user_error))


def end_of_process(core: FakeCore) -> None:
    core.child.status = -9


DEATHS: dict[str, tuple[Callable[[FakeCore], None], str]] = {
    "process": (end_of_process, "status -9"),
    "word": (lambda core: core.say(Failed("out of memory")), "out of memory"),
    "garbage": (lambda core: core.say_bytes(b"\x80\x04garbage"), "can't be read"),
    "stranger": (lambda core: core.deltas(SequenceDelta("nobody", (1,))), "can't be read"),
}


@pytest.mark.parametrize("death", DEATHS)
def test_everybody_hears_of_the_cores_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: Ready, death: str
) -> None:
    die, reason = DEATHS[death]

    async def scenario(client: CoreClient, core: FakeCore) -> None:
        await start(client, core)
        news: asyncio.Queue[SequenceDelta] = asyncio.Queue()
        await client.add(REQUEST, news.put_nowait)
        await core.hear()
        die(core)
        assert (await next_of(news)).finish_reason == "abort"
        assert reason in await asyncio.wait_for(client.wait_dead(), 5)
        with pytest.raises(EngineDeadError, match=reason):
            await client.add(REQUEST, news.put_nowait)
        await client.abort(("a",))

    run(scenario, tmp_path, monkeypatch, ready)


def test_a_listener_that_fails_does_not_keep_the_news_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: Ready
) -> None:
    def fail(delta: SequenceDelta) -> None:
        raise OSError(delta.request_id)

    async def scenario(client: CoreClient, core: FakeCore) -> None:
        await start(client, core)
        news: asyncio.Queue[SequenceDelta] = asyncio.Queue()
        for name, listener in (("a", fail), ("b", fail), ("c", news.put_nowait)):
            await client.add(EngineRequest(name, (1,), (), SamplingParams()), listener)
        core.deltas(SequenceDelta("a", (1,)))
        assert (await next_of(news)).finish_reason == "abort"
        assert await asyncio.wait_for(client.wait_dead(), 5)

    run(scenario, tmp_path, monkeypatch, ready)


def test_a_profile_is_answered_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: Ready) -> None:
    async def scenario(client: CoreClient, core: FakeCore) -> None:
        await start(client, core)
        starting = asyncio.create_task(client.start_profile())
        assert await core.hear() == StartProfile()
        again = asyncio.create_task(client.start_profile())
        assert await core.hear() == StartProfile()
        starting.cancel()  # its answer still comes, and is not taken for the next one's
        stopping = asyncio.create_task(client.stop_profile(tmp_path))
        assert await core.hear() == StopProfile(str(tmp_path))
        for answer in (ProfileStarted(), ProfileFailed("already"), ProfileTaken(EngineProfile(1, 2.0, 0.5, ()))):
            core.say(answer)
        with pytest.raises(UserError, match="already"):
            await again
        assert (await stopping).step_seconds == 2.0
        waiting = asyncio.create_task(client.stop_profile(tmp_path))
        await core.hear()
        core.say(Failed("out of memory"))
        with pytest.raises(EngineDeadError, match="out of memory"):
            await waiting

    run(scenario, tmp_path, monkeypatch, ready)


def test_a_core_that_falls_silent_is_stuck_until_it_speaks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: Ready
) -> None:
    """It is given a while, more of it if it was silent for long before, and never more than a step may take."""
    now = 1000.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))

    async def scenario(client: CoreClient, core: FakeCore) -> None:
        nonlocal now
        await start(client, core)
        client._step_timeout = math.inf
        now += module._QUIET_SECONDS
        assert not client.is_stuck
        now += 1
        assert client.is_stuck
        core.deltas()
        await until(lambda: not client.is_stuck)
        silence = module._QUIET_SECONDS + 1
        now += module._QUIET_TIMES * silence
        assert not client.is_stuck, "it has earned so much patience"
        client._step_timeout = silence
        assert client.is_stuck
        client._step_timeout = math.inf
        now += 1
        assert client.is_stuck

    run(scenario, tmp_path, monkeypatch, ready)


def test_a_core_that_stays_silent_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: Ready) -> None:
    async def be_silent(seconds: float) -> None:
        for _ in range(round(seconds / module._POLL_SECONDS)):
            await pass_time(module._POLL_SECONDS)

    async def scenario(client: CoreClient, core: FakeCore) -> None:
        await start(client, core)
        client._step_timeout = 55
        news: asyncio.Queue[SequenceDelta] = asyncio.Queue()
        await client.add(REQUEST, news.put_nowait)
        most = 55 + module._LAST_WORD_SECONDS
        for number in range(3):  # longer together, but each is a sign of life; a busy machine takes its time besides
            await be_silent(most / 2)
            core.say(Outputs((), EngineStats(num_running=number)))
            await until(lambda: client.stats.num_running == number)  # noqa: B023 - used at once
        assert client.death is None
        await be_silent(most + 1)
        assert (await next_of(news)).finish_reason == "abort"
        assert await client.wait_dead() == (
            "the engine's core has said nothing for longer than a step may take, 55 s (step_timeout)."
        )
        assert core.child.status == -9

    run(scenario, tmp_path, monkeypatch, ready)

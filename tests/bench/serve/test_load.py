"""How a load is sent."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace

import pytest

from chiasm.bench.datasets.sample import Sample
from chiasm.bench.serve import load as load_module
from chiasm.bench.serve.client import ChatClient
from chiasm.bench.serve.load import Load, put_load
from chiasm.bench.serve.metrics import Outcome
from tests.clocks import PATIENCE, take_turns


class _SlowClient(ChatClient):
    """Answers every second request at once, and the others never."""

    async def ask(self, _body: object, request_id: str, outcome: Outcome) -> None:
        if int(request_id.rpartition("-")[2]) % 2:
            await asyncio.sleep(3600)
        outcome.text = request_id


def test_a_load_that_is_stopped_keeps_what_has_ended() -> None:
    load = Load("m", [Sample([], 1)] * 5)
    enough, seen = asyncio.Event(), []

    def note(outcome: Outcome) -> None:
        seen.append(outcome)
        if len(seen) == 3:
            enough.set()

    async def stop() -> list[Outcome]:
        async with _SlowClient("http://x") as client:
            putting = asyncio.create_task(put_load(client, load, note))
            await enough.wait()
            putting.cancel()
            return (await putting)[0]

    outcomes = asyncio.run(asyncio.wait_for(stop(), PATIENCE))
    assert [outcome.text[-2:] for outcome in outcomes] == ["-0", "-2", "-4"]


class _BusyClient(ChatClient):
    """Counts how many requests it has at a time; each takes two seconds of ``clock``."""

    now = most = 0
    clock = 0.0

    async def ask(self, _body: object, _request_id: str, _outcome: Outcome) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await take_turns()  # in which all requests come
        self.clock += 1.0  # of two at a time
        self.now -= 1


def test_requests_over_the_limit_wait_and_say_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def put() -> tuple[int, list[Outcome]]:
        async with _BusyClient("http://x") as client:
            clock = SimpleNamespace(perf_counter=lambda: client.clock, time_ns=time.time_ns)
            monkeypatch.setattr(load_module, "time", clock)
            load = Load("m", [Sample([], 1)] * 4, max_concurrency=2)
            outcomes, _ = await put_load(client, load, lambda _: None)
            return client.most, outcomes

    most, outcomes = asyncio.run(put())
    assert most == 2
    assert [outcome.queued for outcome in outcomes] == [0.0, 0.0, 1.0, 2.0]

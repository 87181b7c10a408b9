"""How a load is sent."""

from __future__ import annotations

import asyncio

from chiasm.bench.datasets.sample import Sample
from chiasm.bench.serve.client import ChatClient
from chiasm.bench.serve.load import Load, put_load
from chiasm.bench.serve.metrics import Outcome


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

    outcomes = asyncio.run(asyncio.wait_for(stop(), 10))
    assert [outcome.text[-2:] for outcome in outcomes] == ["-0", "-2", "-4"]


class _BusyClient(ChatClient):
    """Counts how many requests it has at a time; each takes 20 ms."""

    now = most = 0

    async def ask(self, _body: object, _request_id: str, _outcome: Outcome) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0.02)
        self.now -= 1


def test_requests_over_the_limit_wait_and_say_how_long() -> None:
    async def put() -> tuple[int, list[Outcome]]:
        async with _BusyClient("http://x") as client:
            load = Load("m", [Sample([], 1)] * 4, max_concurrency=2)
            outcomes, _ = await put_load(client, load, lambda _: None)
            return client.most, outcomes

    most, outcomes = asyncio.run(put())
    assert most == 2
    assert [outcome.queued > 0.01 for outcome in outcomes] == [False, False, True, True]

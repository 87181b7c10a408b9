"""How a load is sent."""

from __future__ import annotations

import asyncio

from chiasm.bench.datasets.sample import Sample
from chiasm.bench.serve.client import ChatClient
from chiasm.bench.serve.load import Load, put_load
from chiasm.bench.serve.metrics import Outcome


class _SlowClient(ChatClient):
    """Answers every second request at once, and the others never."""

    async def ask(self, _body: bytes, request_id: str, outcome: Outcome) -> None:
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

"""Sends the requests of a benchmark when they are due, and gathers what comes of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any

from chiasm.bench.datasets.sample import Sample
from chiasm.bench.serve.arrivals import Arrivals
from chiasm.bench.serve.client import ChatClient
from chiasm.bench.serve.metrics import Outcome


@dataclass(frozen=True)
class Load:
    """What is put on a server.

    Attributes:
        model: as the server calls it.
        samples: the requests in order.
        arrivals: when they come.
        max_concurrency: requests under way at a time; those that are due wait in the client, outside of their times.
        seed: of the arrivals.
        fields: further ones of every request's body, such as ``temperature``.
    """

    model: str
    samples: Sequence[Sample]
    arrivals: Arrivals = field(default_factory=Arrivals)
    max_concurrency: int | None = None
    seed: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)

    def body(self, sample: Sample) -> dict[str, Any]:
        """The body of a request."""
        return {
            "model": self.model,
            "messages": [{"role": "user", "content": sample.content}],
            "max_completion_tokens": sample.output_len,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self.fields,
        }


async def put_load(client: ChatClient, load: Load, done: Callable[[Outcome], object]) -> tuple[list[Outcome], float]:
    """Send everything, or what there is time for until the task is cancelled (Ctrl-C).

    Args:
        client: of the server.
        load: to be sent.
        done: is told of each request that has ended.

    Returns:
        What came of each request that has ended, in the order of the samples, and the seconds that all took.
    """
    times = load.arrivals.times(len(load.samples), load.seed)
    places: AbstractAsyncContextManager[Any] = nullcontext()
    if load.max_concurrency is not None:
        places = asyncio.Semaphore(load.max_concurrency)
    start = time.perf_counter()
    prefix = f"bench-{load.seed}-{time.time_ns():x}"
    ended: dict[int, Outcome] = {}

    async def send(index: int, sample: Sample) -> None:
        outcome, due = Outcome(), time.perf_counter()
        async with places:
            outcome.queued = time.perf_counter() - due
            await client.ask(load.body(sample), f"{prefix}-{index}", outcome)
        ended[index] = outcome
        done(outcome)

    with suppress(asyncio.CancelledError):  # whoever stops a long load wants what it has measured
        async with asyncio.TaskGroup() as tasks:
            for index, sample in enumerate(load.samples):
                await asyncio.sleep(max(0.0, start + times[index] - time.perf_counter()))
                tasks.create_task(send(index, sample))
    return [ended[index] for index in sorted(ended)], time.perf_counter() - start

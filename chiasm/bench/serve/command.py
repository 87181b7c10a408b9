"""``chiasm bench serve``: what it does between its options and its result."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tqdm import tqdm

from chiasm.bench.datasets.sample import Sample
from chiasm.bench.serve.arrivals import Arrivals
from chiasm.bench.serve.client import ChatClient
from chiasm.bench.serve.load import Load, put_load
from chiasm.bench.serve.metrics import Outcome
from chiasm.errors import UserError

MODELS_PATH = "/v1/models"


@dataclass(frozen=True)
class ServeBenchmark:
    """A load to be put on a server.

    Attributes:
        base_url: of the server.
        endpoint: path of its chat endpoint.
        model: as requests name it; the first one that the server has if None.
        samples: the requests.
        arrivals: when they come.
        max_concurrency: requests under way at a time.
        num_warmups: how often the first request is sent before, one after another; what comes of it isn't counted.
        seed: of the arrivals.
        fields: further ones of every request's body.
        headers: of every request.
        verify: whether a TLS certificate must be valid.
        ready_seconds: how long to wait for the server.
        progress: whether to show a bar.
    """

    base_url: str
    samples: Sequence[Sample]
    endpoint: str = "/v1/chat/completions"
    model: str | None = None
    arrivals: Arrivals = field(default_factory=Arrivals)
    max_concurrency: int | None = None
    num_warmups: int = 0
    seed: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    verify: bool = True
    ready_seconds: float = 0.0
    progress: bool = True

    def run(self) -> tuple[Load, list[Outcome], float]:
        """Put it.

        Returns:
            The load, what came of each request that has ended (Ctrl-C stops the others), and the seconds that all
            took.

        Raises:
            UserError: if there is no server, or the first request fails.
        """
        return asyncio.run(self._run())

    async def _run(self) -> tuple[Load, list[Outcome], float]:
        options = {"headers": self.headers, "verify": self.verify}
        async with ChatClient(self.base_url, self.endpoint, **options) as client:  # type: ignore[arg-type]
            await client.wait_until_ready(self.ready_seconds)
            model = self.model or await _first_model(client)
            load = Load(model, self.samples, self.arrivals, self.max_concurrency, self.seed, self.fields)
            await self._warm_up(client, load)
            with tqdm(total=len(self.samples), disable=not self.progress, dynamic_ncols=True) as bar:
                outcomes, seconds = await put_load(client, load, lambda _: bar.update())
            return load, outcomes, seconds

    async def _warm_up(self, client: ChatClient, load: Load) -> None:
        """The first request alone: what is wrong with all of them is said before all are sent."""
        for index in range(self.num_warmups):
            outcome = Outcome()
            await client.ask(load.body(load.samples[0]), f"bench-warm-up-{index}", outcome)
            if not outcome.succeeded:
                raise UserError(f"A request to warm up fails: {outcome.error}")


async def _first_model(client: ChatClient) -> str:
    listed = await client.get_json(MODELS_PATH)
    try:
        return str(listed["data"][0]["id"])
    except (TypeError, LookupError):
        message = f"{client.base_url}{MODELS_PATH} lists no model; --model says what to ask for."
        raise UserError(message, param="model") from None

"""News of the engine's steps for those who watch; while nobody does, the core tells nothing."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping

from chiasm.engine.frontend.client import CoreClient
from chiasm.schema.chat import PreparedPrompt
from chiasm.schema.steps import EncoderBegan, NamedNews, StepNews, UnitName

_MAX_QUEUED = 256  # news that wait for a slow watcher; the oldest go first


class StepWatchers:
    """Hands the core's news to any number of watchers.

    Args:
        client: of the core.
        prompts: those being answered, by the request's name; read while there is a watcher.
    """

    def __init__(self, client: CoreClient, prompts: Mapping[str, PreparedPrompt]) -> None:
        self._client = client
        self._prompts = prompts
        self._queues: set[asyncio.Queue[NamedNews]] = set()
        self._switching = asyncio.Lock()

    async def watch(self) -> AsyncGenerator[NamedNews, None]:
        """News from now on, without end; closing the generator ends it. A slow watcher misses the oldest."""
        queue: asyncio.Queue[NamedNews] = asyncio.Queue(_MAX_QUEUED)
        self._queues.add(queue)
        try:
            await self._switch()
            while True:
                yield await queue.get()
        finally:
            self._queues.discard(queue)
            await self._switch()

    async def _switch(self) -> None:
        """Have the core tell or not, as there are watchers; one at a time, so that the last word is the right one."""
        async with self._switching:
            await self._client.watch(self._tell if self._queues else None)

    def _tell(self, news: StepNews) -> None:
        named = NamedNews(news, self._names(news) if isinstance(news, EncoderBegan) else {})
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(named)

    def _names(self, news: EncoderBegan) -> dict[str, UnitName]:
        """Which unit of whose prompt each key is; where several have it, of the one that came first."""
        wanted = {rows.key for lane in news.lanes for rows in lane}
        names: dict[str, UnitName] = {}
        for request_id, prompt in self._prompts.items():
            counts: Counter[str] = Counter()
            for item in prompt.items:
                for position, unit in enumerate(item.units):
                    if unit.key in wanted and unit.key not in names:
                        index = counts[item.modality]
                        names[unit.key] = UnitName(request_id, item.modality, index, position, len(item.units))
                counts[item.modality] += 1
        return names

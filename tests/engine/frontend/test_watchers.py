"""News of steps from the core to those who watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from chiasm.engine.frontend.client import CoreClient
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.llm.watching import StepWatchers
from chiasm.schema.chat import PreparedPrompt
from chiasm.schema.media import MediaItem, PixelRef, Unit
from chiasm.schema.output import EngineStats
from chiasm.schema.steps import EncoderBegan, NamedNews, StepsEnded, UnitName, UnitRows
from chiasm.schema.wire import Ready, WatchSteps
from tests.clocks import PATIENCE, until
from tests.engine.frontend.support import make_facts
from tests.engine.frontend.test_client import FakeCore, run, start


def ended(number: int) -> StepsEnded:
    return StepsEnded(float(number), 1, 0.0, EngineStats())


def item(modality: str, *keys: str) -> MediaItem:
    return MediaItem(modality, 0, len(keys), tuple(Unit(key, (2, 2), 1, PixelRef("", 0, 4, 1)) for key in keys))  # type: ignore[arg-type]


async def until_heard(client: CoreClient, core: FakeCore) -> None:
    """Wait until the client has taken in all that the core has said."""
    core.deltas()
    await until(lambda: client.stats.num_running > 0)


@pytest.fixture
def ready(tokenizer: Tokenizer) -> Ready:
    return Ready(make_facts(tokenizer), 64, ("a line",), ())


def test_the_core_tells_from_the_first_watcher_to_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: Ready
) -> None:
    async def scenario(client: CoreClient, core: FakeCore) -> None:
        await start(client, core)
        watchers = StepWatchers(client, {})

        async def first_of(watching: AsyncGenerator[NamedNews, None]) -> NamedNews:
            return await asyncio.wait_for(anext(watching), PATIENCE)

        one, two = watchers.watch(), watchers.watch()
        waiting = asyncio.create_task(first_of(one))
        assert await core.hear() == WatchSteps(True)
        also_waiting = asyncio.create_task(first_of(two))
        assert await core.hear() == WatchSteps(True)
        core.say(ended(1))
        assert (await waiting).news == (await also_waiting).news == ended(1)
        await one.aclose()
        assert await core.hear() == WatchSteps(True)
        core.say(ended(2))
        assert (await first_of(two)).news == ended(2)
        await two.aclose()
        assert await core.hear() == WatchSteps(False)
        core.say(ended(3))  # was under way
        await until_heard(client, core)
        assert client.death is None

    run(scenario, tmp_path, monkeypatch, ready)


def test_a_slow_watcher_misses_the_oldest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: Ready) -> None:
    async def scenario(client: CoreClient, core: FakeCore) -> None:
        await start(client, core)
        watching = StepWatchers(client, {}).watch()
        first = asyncio.create_task(anext(watching))
        await core.hear()
        core.say(ended(0))
        await first
        for number in range(1, 400):
            core.say(ended(number))
        await until_heard(client, core)
        assert [(await anext(watching)).news.time for _ in range(256)] == list(range(144, 400))
        await watching.aclose()

    run(scenario, tmp_path, monkeypatch, ready)


def test_units_have_the_names_of_the_prompts_that_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ready: Ready
) -> None:
    prompts = {
        "r1": PreparedPrompt("", (), (item("image", "a"), item("video", "b", "c"), item("image", "d"))),
        "r2": PreparedPrompt("", (), (item("image", "c", "e"),)),
    }

    async def scenario(client: CoreClient, core: FakeCore) -> None:
        await start(client, core)
        watching = StepWatchers(client, prompts).watch()
        first = asyncio.create_task(anext(watching))
        await core.hear()
        lanes = (tuple(UnitRows(key, 0, 4, 4) for key in "cde"), (UnitRows("gone", 0, 4, 4),))
        core.say(EncoderBegan(0, 1.0, "why", 0.1, 0, 4, 4, lanes))
        assert (await first).names == {
            "c": UnitName("r1", "video", 0, 1, 2),
            "d": UnitName("r1", "image", 1, 0, 1),
            "e": UnitName("r2", "image", 0, 1, 2),
        }
        await watching.aclose()

    run(scenario, tmp_path, monkeypatch, ready)

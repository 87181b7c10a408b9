from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from chiasm.config.engine import MediaConfig
from chiasm.engine.frontend import media_loader as module
from chiasm.engine.frontend.media_loader import MediaLoader
from chiasm.errors import UserError
from chiasm.multimodal.sources import MediaSource
from chiasm.schema.chat import ImagePart
from chiasm.schema.media import PatchProcessorSpec, PixelRef, ProcessedItem, Unit

SPEC = PatchProcessorSpec(14, 2, 2, 3136, 301056)


class FakePool:
    """Writes a file for each picture that is not bad."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[str | None] = []

    async def process(self, source: MediaSource, spec: PatchProcessorSpec, param: str | None = None) -> ProcessedItem:
        self.seen.append(param)
        if param == "slow":
            await asyncio.sleep(60)
        if param == "late":
            await asyncio.sleep(0.05)
        if param == "bad":
            await asyncio.sleep(0.02)
            raise UserError("bad picture", param=param)
        path = self.folder / f"{param}.pixels"
        path.touch()
        return ProcessedItem("image", 1, (Unit(str(param), (2, 2), 1, PixelRef(str(path), 0, 4, 10)),))

    async def close(self) -> None:
        pass


@pytest.fixture
def pool(tmp_path: Path) -> FakePool:
    return FakePool(tmp_path)


def load(pool: FakePool, *params: str, monkeypatch: pytest.MonkeyPatch) -> list[ProcessedItem]:
    """Load a picture for each param, whose name says how that goes."""
    monkeypatch.setattr(module, "PreprocessPool", lambda *args, **kwargs: pool)
    loader = MediaLoader(MediaConfig(), pool.folder)
    parts = [ImagePart("data:image/png;base64,AAAA", param) for param in params]

    async def fetch_and_process() -> list[ProcessedItem]:
        return await loader.process(await loader.fetch(parts), parts, SPEC)

    return asyncio.run(asyncio.wait_for(fetch_and_process(), 5))


def test_items_come_in_the_order_of_their_parts(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    items = load(pool, "late", "a", "b", monkeypatch=monkeypatch)
    assert [item.units[0].key for item in items] == ["late", "a", "b"]
    assert load(pool, monkeypatch=monkeypatch) == []


def test_if_one_fails_none_leaves_anything_behind(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="bad picture") as caught:
        load(pool, "a", "bad", "slow", "b", monkeypatch=monkeypatch)
    assert caught.value.param == "bad"
    assert pool.seen == ["a", "bad", "slow", "b"], "all were begun together"
    assert list(pool.folder.glob("*.pixels")) == []


def test_a_bad_source_is_named_before_any_worker_sees_it(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PreprocessPool", lambda *args, **kwargs: pool)
    loader = MediaLoader(MediaConfig(), pool.folder)
    for source in ("ftp://example.com/a.png", "/etc/passwd", 5):
        with pytest.raises(UserError) as caught:
            asyncio.run(loader.fetch([ImagePart(source, "messages[0].content[0].image")]))
        assert caught.value.param == "messages[0].content[0].image"
    assert pool.seen == []

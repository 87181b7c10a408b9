from __future__ import annotations

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest

from chiasm.config.engine import MediaConfig
from chiasm.engine.frontend import media_loader as module
from chiasm.engine.frontend.media_loader import MediaLoader
from chiasm.errors import OverloadedError, UserError
from chiasm.multimodal.downloads import HeldDownloads
from chiasm.multimodal.fetch import MediaFetcher
from chiasm.multimodal.sources import MediaSource
from chiasm.schema.chat import ImagePart, MediaPart, VideoPart
from chiasm.schema.media import MediaSpec, PatchProcessorSpec, PixelRef, ProcessedItem, Unit, VideoProcessorSpec
from tests.clocks import PATIENCE

SPEC = PatchProcessorSpec(14, 2, 2, 3136, 301056)


class FakePool:
    """Writes a file for each picture that is not bad."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[str | None] = []

    async def process(self, source: MediaSource, spec: MediaSpec, param: str | None = None) -> ProcessedItem:
        self.seen.append(param)
        if param == "slow":
            await asyncio.sleep(600)
        if param == "late":
            await asyncio.sleep(0.05)
        if param == "bad":
            await asyncio.sleep(0.02)
            raise UserError("bad picture", param=param)
        path = self.folder / f"{param}-{len(self.seen)}.pixels"
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
    loader = MediaLoader(MediaConfig(mm_processor_cache_gb=0), pool.folder)
    parts = [ImagePart(f"data:image/png;base64,{number:04}", param) for number, param in enumerate(params)]

    return asyncio.run(asyncio.wait_for(loaded(loader, parts), PATIENCE))


async def loaded(loader: MediaLoader, parts: Sequence[MediaPart], spec: MediaSpec = SPEC) -> list[ProcessedItem]:
    """The parts, as an engine has them loaded."""
    async with loader.fetched(parts) as sources:
        return await loader.process(sources, parts, [spec] * len(parts))


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
            asyncio.run(loaded(loader, [ImagePart(source, "messages[0].content[0].image")]))
        assert caught.value.param == "messages[0].content[0].image"
    assert pool.seen == []


def picture(side: int, value: int = 0) -> np.ndarray:
    return np.full((side, 2 * side, 3), value, np.uint8)


def test_only_what_gives_the_same_result_is_not_processed_again(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Narrowed limits, other sizes of the same bytes and other forms of a source are processed for themselves."""
    monkeypatch.setattr(module, "PreprocessPool", lambda *args, **kwargs: pool)
    loader = MediaLoader(MediaConfig(), pool.folder)
    small, large = picture(20), picture(400)  # hashed at once, and beside the event loop
    narrow = msgspec.structs.replace(SPEC, max_pixels=5000)
    data = base64.b64encode(small.tobytes()).decode()
    cases = [
        (small, SPEC), (small, narrow), (small.reshape(40, 20, 3), SPEC), (picture(20, 1), SPEC), (large, SPEC),
        (f"data:image/png;base64,{data}", SPEC), (f"data:image/png;base64,{data}", narrow),
    ]  # fmt: skip

    async def load_twice() -> None:
        for repeat in range(2):
            for number, (source, spec) in enumerate(cases):
                parts = [ImagePart(source, f"{number} {repeat}")]
                loader.release(await loaded(loader, parts, spec))

    asyncio.run(load_twice())
    assert pool.seen == [f"{number} 0" for number in range(len(cases))]
    assert (loader.num_cache_queries, loader.num_cache_hits) == (2 * len(cases), len(cases))


@pytest.mark.parametrize(
    ("source", "gib"), [("file:///a.png", 0.5), ("data:image/png;base64,AAAA", 0)], ids=["local file", "turned off"]
)
def test_what_is_not_kept(pool: FakePool, monkeypatch: pytest.MonkeyPatch, source: str, gib: float) -> None:
    """A local file may hold something else the next time."""
    monkeypatch.setattr(module, "PreprocessPool", lambda *args, **kwargs: pool)
    loader = MediaLoader(MediaConfig(mm_processor_cache_gb=gib), pool.folder)
    parts = [ImagePart(source, "a"), ImagePart(source, "b")]

    async def load_both() -> None:
        items = await loaded(loader, parts)
        assert len(list(pool.folder.iterdir())) == 2
        loader.release(items)

    asyncio.run(load_both())
    assert list(pool.folder.iterdir()) == []
    assert loader.num_cache_queries == 0


def test_the_same_image_twice_in_a_request_is_processed_once_and_lent_twice(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PreprocessPool", lambda *args, **kwargs: pool)
    loader = MediaLoader(MediaConfig(mm_processor_cache_gb=1 / 2**30), pool.folder)  # too small to keep it
    parts = [ImagePart(picture(20), "late"), ImagePart(picture(20), "late")]

    async def load_both() -> None:
        first, second = await loaded(loader, parts)
        loader.release([first])
        assert len(list(pool.folder.iterdir())) == 1
        loader.release([second])

    asyncio.run(load_both())
    assert pool.seen == ["late"]
    assert list(pool.folder.iterdir()) == []


def test_it_is_said_what_is_downloaded(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[str] = []

    async def fetch(_fetcher: MediaFetcher, _url: str, _param: str, *, modality: str, **_: object) -> bytes:
        given.append(modality)
        return b""

    monkeypatch.setattr(MediaFetcher, "fetch", fetch)
    monkeypatch.setattr(module, "PreprocessPool", lambda *args, **kwargs: pool)
    loader = MediaLoader(MediaConfig(), pool.folder)
    url = "https://example.com/a"
    asyncio.run(loaded(loader, [ImagePart(url, "image"), VideoPart(url, "video")]))
    assert given == ["image", "video"]


def test_downloads_are_bounded_together_until_they_are_decoded(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threat: unbounded media (GHSA-p6g9-7v3x-m8mv): short requests can ask for much, and for much at once."""

    async def fetch(_fetcher: MediaFetcher, url: str, param: str, *, held: HeldDownloads, **_: object) -> bytes:
        for _piece in range(int(url.rpartition("/")[2])):
            held.grow(100, param)
        return b""

    monkeypatch.setattr(MediaFetcher, "fetch", fetch)
    monkeypatch.setattr(module, "PreprocessPool", lambda *args, **kwargs: pool)
    loader = MediaLoader(MediaConfig(max_media_bytes=500, max_download_bytes_in_flight=1000), pool.folder)

    async def scenario() -> None:
        three = [ImagePart("http://a.test/3", name) for name in "ab"]
        six = [ImagePart("http://a.test/6", name) for name in "cd"]
        with pytest.raises(UserError, match="at most 1000 bytes together") as caught:
            await loaded(loader, six)
        assert caught.value.status == 422
        async with loader.fetched(three):
            with pytest.raises(OverloadedError, match="of at most 1000"):
                await loaded(loader, six[:1])
            await loaded(loader, three[:1])
        await loaded(loader, six[:1])
        assert loader._downloads.num_bytes == 0

    asyncio.run(asyncio.wait_for(scenario(), 5))


def test_the_same_file_as_a_picture_and_as_a_video_is_processed_twice(
    pool: FakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "PreprocessPool", lambda *args, **kwargs: pool)
    loader = MediaLoader(MediaConfig(), pool.folder)
    parts = [ImagePart(picture(20), "image"), VideoPart(picture(20), "video"), VideoPart(picture(20), "slower")]
    specs = [SPEC, VideoProcessorSpec(SPEC), VideoProcessorSpec(SPEC, fps=1.0)]

    async def load() -> None:
        loader.release(await loader.process([MediaSource("bytes", b"GIF")] * 3, parts, specs))

    asyncio.run(load())
    assert pool.seen == ["image", "video", "slower"]

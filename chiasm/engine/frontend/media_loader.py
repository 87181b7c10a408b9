"""Loads the media of a request: fetched, decoded and cut into patches outside this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from chiasm.config.engine import MediaConfig
from chiasm.errors import UserError, refuse
from chiasm.multimodal.downloads import DownloadGauge, HeldDownloads
from chiasm.multimodal.fetch import MediaFetcher
from chiasm.multimodal.hashing import source_digest
from chiasm.multimodal.in_memory import source_of_object, video_source_of_object
from chiasm.multimodal.item_cache import ItemCache
from chiasm.multimodal.pool import PreprocessPool
from chiasm.multimodal.sources import MediaSource, RemoteUrl, parse_frames, parse_source
from chiasm.schema.chat import MediaPart, VideoPart
from chiasm.schema.media import MediaSpec, Modality, ProcessedItem

_HASHED_AT_ONCE = 256 * 1024  # bytes whose digest takes less time than to have it made beside the event loop

Done = TypeVar("Done")


class MediaLoader:
    """Turns media parts into pixels on disk, and keeps some for when the same media come again.

    Args:
        media: limits, and where media may come from.
        runtime_dir: the engine's private folder.

    Raises:
        UserError: if the folder of local files does not exist.
    """

    def __init__(self, media: MediaConfig, runtime_dir: Path) -> None:
        folder = media.allowed_local_media_path
        if folder is not None and not Path(folder).is_dir():
            refuse("allowed_local_media_path", folder, "an existing folder")
        self._media = media
        self._fetcher = MediaFetcher(media)
        self._downloads = DownloadGauge(media.max_download_bytes_in_flight)
        self._pool = PreprocessPool(media, runtime_dir=runtime_dir, pixel_folder=runtime_dir)
        self._cache = ItemCache(round(media.mm_processor_cache_gb * 2**30))

    @property
    def num_cache_queries(self) -> int:
        """Items looked for among those that are kept, so far."""
        return self._cache.num_queries

    @property
    def num_cache_hits(self) -> int:
        """Of these, items that did not have to be processed again."""
        return self._cache.num_hits

    def start(self) -> None:
        """Start the worker processes; returns at once, they get ready in the background."""
        self._pool.start()

    @asynccontextmanager
    async def fetched(self, parts: Sequence[MediaPart]) -> AsyncIterator[list[MediaSource]]:
        """Have the encoded media of a request at hand, until they are processed: nothing is decoded yet.

        Raises:
            UserError: for the first item that can't be had, naming its field.
            OverloadedError: if downloads hold too much memory.
        """
        with self._downloads.request() as held:
            yield await _all_or_none([self._fetch_one(part, held) for part in parts])

    async def process(
        self, sources: Sequence[MediaSource], parts: Sequence[MediaPart], specs: Sequence[MediaSpec]
    ) -> list[ProcessedItem]:
        """Have the pixels of all media of a request on disk; if one fails, none is left behind.

        Each item must be given back to ``release``, once for each time that it is in the list.

        Raises:
            UserError: for the first item that can't be processed, naming its field.
        """
        budget = _PixelBudget(self._media.max_pixels_per_prompt)
        works = [
            self._process_one(source, spec, part.param, budget)
            for source, part, spec in zip(sources, parts, specs, strict=True)
        ]
        return await _all_or_none(works, undo=self._cache.release)

    def release(self, items: Sequence[ProcessedItem]) -> None:
        """Nobody will read these items for that request any more."""
        for item in items:
            self._cache.release(item)

    async def close(self) -> None:
        """Stop the worker processes."""
        await self._pool.close()

    async def _fetch_one(self, part: MediaPart, held: HeldDownloads) -> MediaSource:
        media = self._media
        if not isinstance(part.source, str):
            return await asyncio.to_thread(self._source_of_object, part)
        if isinstance(part, VideoPart):
            limits = {"max_bytes": media.max_media_bytes, "max_frames": media.max_video_frames}
            frames = parse_frames(part.source, param=part.param, **limits)
            if frames is not None:
                return frames
        parsed = parse_source(part.source, max_bytes=media.max_media_bytes, param=part.param)
        if isinstance(parsed, RemoteUrl):
            modality: Modality = "video" if isinstance(part, VideoPart) else "image"
            data = await self._fetcher.fetch(parsed.url, part.param, modality=modality, held=held)
            return MediaSource("bytes", data)
        return parsed

    def _source_of_object(self, part: MediaPart) -> MediaSource:
        media = self._media
        if not isinstance(part, VideoPart):
            return source_of_object(part.source, max_pixels=media.max_image_pixels, param=part.param)
        return video_source_of_object(
            part.source,
            max_pixels=media.max_video_pixels,
            max_frames=media.max_video_frames,
            max_bytes=media.max_media_bytes,
            param=part.param,
        )

    async def _process_one(
        self, source: MediaSource, spec: MediaSpec, param: str, budget: _PixelBudget
    ) -> ProcessedItem:
        digest = await self._digest(source, spec)
        item = await self._cache.borrow(digest, lambda: self._pool.process(source, spec, param))
        try:
            budget.take(item.num_pixels, param)
        except UserError:
            self._cache.release(item)
            raise
        return item

    async def _digest(self, source: MediaSource, spec: MediaSpec) -> str | None:
        # A local file is opened by a worker, which also checks its path; what it holds is not known here.
        if source.kind == "file" or self._media.mm_processor_cache_gb == 0:
            return None
        if len(source.payload) <= _HASHED_AT_ONCE:
            return source_digest(source, spec)
        return await asyncio.to_thread(source_digest, source, spec)


class _PixelBudget:
    """What the pictures of one prompt may cost to decode: small files can hold very many pixels.

    A picture that is kept from before counts as well, so that the same request always gets the same answer.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_taken = 0

    def take(self, num_pixels: int, param: str) -> None:
        """Count the pixels of a picture.

        Raises:
            UserError: if all so far are too many; the others need not be decoded then.
        """
        self._num_taken += num_pixels
        if self._num_taken > self._limit:
            message = f"the prompt's images have more than {self._limit} pixels together (max_pixels_per_prompt)."
            raise UserError(message, param=param)


async def _all_or_none(
    works: Sequence[Coroutine[Any, Any, Done]], undo: Callable[[Done], object] = lambda _: None
) -> list[Done]:
    """All results, in order; when one fails, the others are cancelled and what is done is undone."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        await _undo(tasks, undo)
        raise
    finally:
        del tasks  # what is raised holds this frame, which must not hold the task that raised it


async def _undo(tasks: Sequence[asyncio.Task[Done]], undo: Callable[[Done], object]) -> None:
    for task in tasks:
        task.cancel()
    for done in await asyncio.gather(*tasks, return_exceptions=True):
        if not isinstance(done, BaseException):
            undo(done)

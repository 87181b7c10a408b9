"""Loads the images of a request: fetched, decoded and cut into patches outside this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from chiasm.config.engine import MediaConfig
from chiasm.errors import refuse
from chiasm.multimodal.fetch import MediaFetcher
from chiasm.multimodal.in_memory import source_of_object
from chiasm.multimodal.pixels import discard_pixels
from chiasm.multimodal.pool import PreprocessPool
from chiasm.multimodal.sources import MediaSource, RemoteUrl, parse_source
from chiasm.schema.chat import ImagePart
from chiasm.schema.media import PatchProcessorSpec, ProcessedItem

Done = TypeVar("Done")


class MediaLoader:
    """Turns image parts into pixels on disk.

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
        self._pool = PreprocessPool(media, runtime_dir=runtime_dir, pixel_folder=runtime_dir)

    def start(self) -> None:
        """Start the worker processes; returns at once, they get ready in the background."""
        self._pool.start()

    async def fetch(self, parts: Sequence[ImagePart]) -> list[MediaSource]:
        """Have the encoded images of a request at hand: downloads end here, nothing is decoded yet.

        Raises:
            UserError: for the first image that can't be had, naming its field.
        """
        return await _all_or_none([self._fetch_one(part) for part in parts])

    async def process(
        self, sources: Sequence[MediaSource], parts: Sequence[ImagePart], spec: PatchProcessorSpec
    ) -> list[ProcessedItem]:
        """Write the pixels of all images of a request; if one fails, none leaves anything behind.

        Raises:
            UserError: for the first image that can't be processed, naming its field.
        """
        works = [self._pool.process(s, spec, part.param) for s, part in zip(sources, parts, strict=True)]
        return await _all_or_none(works, undo=discard_pixels)

    async def close(self) -> None:
        """Stop the worker processes."""
        await self._pool.close()

    async def _fetch_one(self, part: ImagePart) -> MediaSource:
        media = self._media
        if not isinstance(part.source, str):
            return await asyncio.to_thread(
                source_of_object, part.source, max_pixels=media.max_image_pixels, param=part.param
            )
        parsed = parse_source(part.source, max_bytes=media.max_media_bytes, param=part.param)
        if isinstance(parsed, RemoteUrl):
            return MediaSource("bytes", await self._fetcher.fetch(parsed.url, part.param))
        return parsed


async def _all_or_none(
    works: Sequence[Coroutine[Any, Any, Done]], undo: Callable[[Done], object] = lambda _: None
) -> list[Done]:
    """All results, in order; when one fails, the others are cancelled and what is done is undone."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        for done in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(done, BaseException):
                undo(done)
        raise

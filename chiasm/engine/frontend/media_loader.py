"""Loads the images of a request: fetched, decoded and cut into patches outside this process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from chiasm.config.engine import MediaConfig
from chiasm.multimodal.fetch import MediaFetcher
from chiasm.multimodal.in_memory import source_of_object
from chiasm.multimodal.pixels import discard_pixels
from chiasm.multimodal.pool import PreprocessPool
from chiasm.multimodal.sources import MediaSource, RemoteUrl, parse_source
from chiasm.schema.chat import ImagePart
from chiasm.schema.media import PatchProcessorSpec, ProcessedItem


class MediaLoader:
    """Turns image parts into pixels on disk.

    Args:
        media: limits, and where media may come from.
        runtime_dir: the engine's private folder.
    """

    def __init__(self, media: MediaConfig, runtime_dir: Path) -> None:
        self._media = media
        self._fetcher = MediaFetcher(media)
        self._pool = PreprocessPool(media, runtime_dir=runtime_dir, pixel_folder=runtime_dir)

    def start(self) -> None:
        """Start the worker processes; returns at once, they get ready in the background."""
        self._pool.start()

    async def load(self, parts: Sequence[ImagePart], spec: PatchProcessorSpec) -> list[ProcessedItem]:
        """Load all images of a request together; if one fails, none leaves anything behind.

        Raises:
            UserError: for the first image that can't be had, naming its field.
        """
        tasks = [asyncio.create_task(self._load_one(part, spec)) for part in parts]
        try:
            return await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            for done in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(done, ProcessedItem):
                    discard_pixels(done)
            raise

    async def close(self) -> None:
        """Stop the worker processes."""
        await self._pool.close()

    async def _load_one(self, part: ImagePart, spec: PatchProcessorSpec) -> ProcessedItem:
        media = self._media
        if not isinstance(part.source, str):
            source = await asyncio.to_thread(
                source_of_object, part.source, max_pixels=media.max_image_pixels, param=part.param
            )
            return await self._pool.process(source, spec, part.param)
        parsed = parse_source(part.source, max_bytes=media.max_media_bytes, param=part.param)
        if isinstance(parsed, RemoteUrl):
            parsed = MediaSource("bytes", await self._fetcher.fetch(parsed.url, part.param))
        return await self._pool.process(parsed, spec, part.param)

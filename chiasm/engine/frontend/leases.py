"""Who still needs a request's pixels, and how many bytes of pixels there are in all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from chiasm.multimodal.pixels import discard_pixels
from chiasm.schema.media import MediaItem


class PixelGauge:
    """Counts the pixels of all live requests, so that new ones wait while there are too many.

    Args:
        limit: bytes from which new requests wait. Those under way finish preparing, so it can be exceeded by a few.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._num_bytes = 0
        self._has_room = asyncio.Event()
        self._has_room.set()

    async def wait_for_room(self) -> None:
        """Return once there are fewer bytes than the limit."""
        await self._has_room.wait()

    def add(self, num_bytes: int) -> None:
        """Pixels were written, or with a negative number deleted."""
        self._num_bytes += num_bytes
        if self._num_bytes < self._limit:
            self._has_room.set()
        else:
            self._has_room.clear()


class PixelLease:
    """Keeps the pixels of a prompt until each of its sequences has ended in the core.

    Args:
        items: the prompt's media.
        num_holders: sequences that read them.
        gauge: told when they are gone.
    """

    def __init__(self, items: Sequence[MediaItem], num_holders: int, gauge: PixelGauge) -> None:
        self._items = items
        self._num_holders = num_holders
        self._gauge = gauge

    def release(self) -> None:
        """One sequence has ended; after the last, the files are deleted."""
        self._num_holders -= 1
        if self._num_holders == 0:
            discard_items(self._items, self._gauge)


def discard_items(items: Sequence[MediaItem], gauge: PixelGauge) -> None:
    """Delete the files of a prompt that no sequence reads."""
    for item in items:
        discard_pixels(item)
    gauge.add(-pixel_bytes(items))


def pixel_bytes(items: Sequence[MediaItem]) -> int:
    """Bytes of pixels behind these items."""
    return sum(unit.pixels.num_rows * unit.pixels.row_bytes for item in items for unit in item.units)

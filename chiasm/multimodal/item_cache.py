"""Processed items that are kept for when the same media comes again, and who still reads their files."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from chiasm.errors import OverloadedError
from chiasm.multimodal.pixels import discard_pixels
from chiasm.schema.media import ProcessedItem

_PAGE_BYTES = 4096  # what a file takes is whole pages; of small pictures that counts

Make = Callable[[], Awaitable[ProcessedItem]]


@dataclass
class _Flight:
    """An item in the making, and how many wait for it. From its landing until the last of them wakes, it holds it."""

    task: asyncio.Task[ProcessedItem]
    num_waiting: int = 0


class ItemCache:
    """Lends items: who borrows one gives it back, and its files are deleted once nobody reads or keeps them.

    For one event loop.

    Args:
        capacity: bytes on disk of the items that are kept; the least recently used make room. 0 keeps none.

    Attributes:
        num_bytes: of the items that are kept.
        num_queries: items that were looked for.
        num_hits: of these, kept or in the making.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._kept: OrderedDict[str, ProcessedItem] = OrderedDict()
        self._flights: dict[str, _Flight] = {}
        self._holders: Counter[str] = Counter()  # of each item: borrowers, flights, and the cache itself
        self.num_bytes = 0
        self.num_queries = 0
        self.num_hits = 0

    async def borrow(self, digest: str | None, make: Make) -> ProcessedItem:
        """An item that is kept, that is in the making for somebody else, or that is made now.

        What fails fails for who had it made; those who waited for it try for themselves, each with the error that its
        own request shall get. Cancelling one who waits stops the making only if nobody else waits.

        Args:
            digest: of all that the item follows from; None for one that can't be told beforehand.
            make: makes it; when cancelled or failing, it leaves no file.

        Raises:
            Whatever ``make`` raises.
        """
        if digest is None or self._capacity == 0:
            made = await self._make(make)
            self._hold(made)
            return made
        self.num_queries += 1
        while (kept := self._find(digest)) is None:
            is_mine = not self._is_in_the_making(digest)
            try:
                made = await self._join(digest, make)
            except Exception:
                if is_mine:
                    raise
            else:
                self.num_hits += not is_mine
                return made
        self.num_hits += 1
        self._hold(kept)
        return kept

    def release(self, item: ProcessedItem) -> None:
        """Give back what was borrowed, once for each time."""
        name = _name(item)
        assert self._holders[name] > 0, name
        self._holders[name] -= 1
        if self._holders[name] == 0:
            del self._holders[name]
            discard_pixels(item)

    def _find(self, digest: str) -> ProcessedItem | None:
        item = self._kept.get(digest)
        if item is None:
            return None
        if not Path(_name(item)).exists():  # cleaners of temporary folders take what lies there for days
            self._drop(digest)
            return None
        self._kept.move_to_end(digest)
        return item

    def _hold(self, item: ProcessedItem) -> None:
        self._holders[_name(item)] += 1

    def _is_in_the_making(self, digest: str) -> bool:
        flight = self._flights.get(digest)
        return flight is not None and not flight.task.done()

    async def _join(self, digest: str, make: Make) -> ProcessedItem:
        if not self._is_in_the_making(digest):
            self._flights[digest] = _Flight(asyncio.create_task(self._fly(digest, make)))
        flight = self._flights[digest]
        flight.num_waiting += 1
        try:
            item = await asyncio.shield(flight.task)
            self._hold(item)
        finally:
            flight.num_waiting -= 1
            if flight.num_waiting == 0:
                self._leave(digest, flight)
        return item

    async def _fly(self, digest: str, make: Make) -> ProcessedItem:
        item = await self._make(make)
        self._hold(item)
        self._keep(digest, item)
        return item

    async def _make(self, make: Make) -> ProcessedItem:
        try:
            return await make()
        except OverloadedError:  # no space is left: what is kept must not stand in the way of what is needed
            if self._capacity == 0:
                raise
            self._shrink(0)
            return await make()

    def _leave(self, digest: str, flight: _Flight) -> None:
        """The last one who waited has woken up or gone away."""
        if self._flights.get(digest) is flight:
            del self._flights[digest]
        if not flight.task.done():
            flight.task.cancel()
        elif not flight.task.cancelled() and flight.task.exception() is None:
            self.release(flight.task.result())

    def _keep(self, digest: str, item: ProcessedItem) -> None:
        if digest in self._kept or _disk_bytes(item) > self._capacity:
            return
        self._hold(item)
        self._kept[digest] = item
        self.num_bytes += _disk_bytes(item)
        self._shrink(self._capacity)

    def _shrink(self, num_bytes: int) -> None:
        while self.num_bytes > num_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, digest: str) -> None:
        item = self._kept.pop(digest)
        self.num_bytes -= _disk_bytes(item)
        self.release(item)


def _name(item: ProcessedItem) -> str:
    """Tells items apart: no two have a file in common."""
    return item.units[0].pixels.path


def _disk_bytes(item: ProcessedItem) -> int:
    num_bytes = sum(unit.pixels.num_rows * unit.pixels.row_bytes for unit in item.units)
    return -(-num_bytes // _PAGE_BYTES) * _PAGE_BYTES

"""Who still needs a request's pixels, and how many bytes of pixels there are in all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from chiasm.schema.media import ProcessedItem


class PixelGauge:
    """Bounds the pixels of all live requests: new ones wait, in order, while there are too many.

    Args:
        limit: bytes that may be reserved at a time; a larger request is let in when it is alone.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._reserved = 0
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()

    @property
    def num_reserved(self) -> int:
        """Bytes that are taken."""
        return self._reserved

    def estimate(self, most_bytes: int) -> int:
        """What to reserve for a request whose size is not known yet.

        Most pictures are far smaller than they may be: with a quarter of the limit at most, a few requests of many
        pictures can be prepared side by side instead of each waiting until it is alone.
        """
        return min(most_bytes, self._limit // 4)

    async def reserve(self, num_bytes: int) -> None:
        """Return once there is room, with the room taken; ``release`` gives it back."""
        if not self._waiting and self._fits(num_bytes):
            self._reserved += num_bytes
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((turn, num_bytes))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._let_in()  # those behind it may fit where it did not
            else:  # its turn came in the same moment
                self.release(num_bytes)
            raise

    def release(self, num_bytes: int) -> None:
        """Pixels are gone, or were fewer than reserved; those who wait move up."""
        self._reserved -= num_bytes
        self._let_in()

    def _let_in(self) -> None:
        """Give their turn to those who fit, in order; who has gone away meanwhile is passed over."""
        while self._waiting and (self._waiting[0][0].cancelled() or self._fits(self._waiting[0][1])):
            turn, wanted = self._waiting.popleft()
            if not turn.cancelled():
                self._reserved += wanted
                turn.set_result(None)

    def _fits(self, num_bytes: int) -> bool:
        return self._reserved == 0 or self._reserved + num_bytes <= self._limit


class PixelLease:
    """Keeps the pixels of a prompt until each of its sequences has ended in the core.

    Args:
        num_holders: sequences that read them.
        let_go: called when the last has ended.
    """

    def __init__(self, num_holders: int, let_go: Callable[[], None]) -> None:
        self._num_holders = num_holders
        self._let_go = let_go

    def release(self) -> None:
        """One sequence has ended."""
        self._num_holders -= 1
        if self._num_holders == 0:
            self._let_go()


def pixel_bytes(items: Sequence[ProcessedItem]) -> int:
    """Bytes of pixels behind these items."""
    return sum(unit.pixels.num_rows * unit.pixels.row_bytes for item in items for unit in item.units)

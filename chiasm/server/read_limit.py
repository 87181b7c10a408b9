"""HTTP for clients that read late: patience with those who send everything first, none with those who never read."""

from __future__ import annotations

import asyncio
from typing import Any

from chiasm.server.head_limit import BoundedHttpProtocol

STALLED_SECONDS = 60.0
"""After so long without room for more of an answer, its client is taken to be gone."""

LINGER_SECONDS = 30.0
"""For so long the rest of a body is dropped whose request has its answer, before its connection is closed."""


class ReadHttpProtocol(BoundedHttpProtocol):
    """Closes the connection of a client that doesn't read, and of one that is still sending only after a while."""

    _giving_up: asyncio.TimerHandle | None = None
    _outer: _LingeringTransport

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin."""
        self._outer = _LingeringTransport(transport, self)
        super().connection_made(self._outer)

    def data_received(self, data: bytes) -> None:
        """Take what arrived, unless it is the rest of a body that nobody reads."""
        if not self._outer.is_lingering:
            super().data_received(data)

    @property
    def is_amid_body(self) -> bool:
        """Whether a client is still sending one."""
        return self.cycle is not None and self.cycle.more_body

    def pause_writing(self) -> None:
        """Wait with more of an answer, but not for ever."""
        super().pause_writing()
        if self._giving_up is None:
            self._giving_up = self.loop.call_later(STALLED_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        super().resume_writing()
        self._stop_giving_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the client."""
        self._stop_giving_up()
        super().connection_lost(exc)

    def _stop_giving_up(self) -> None:
        if self._giving_up is not None:
            self._giving_up.cancel()
            self._giving_up = None


class _LingeringTransport(asyncio.Transport):
    """Says at once that no more will come, but closes a connection in the middle of a body only after a while.

    Most clients look for an answer when they have sent everything. Where a connection is closed with something
    unread, the system resets it, and they never see why their body was refused.

    Attributes:
        is_lingering: whether what still comes is dropped.
    """

    def __init__(self, inner: asyncio.Transport, protocol: ReadHttpProtocol) -> None:
        super().__init__()
        self._inner = inner
        self._protocol = protocol
        self.is_lingering = False

    def close(self) -> None:
        if self.is_lingering:
            return
        if not self._protocol.is_amid_body or self._inner.is_closing():
            self._inner.close()
            return
        self.is_lingering = True
        self._protocol.flow.resume_reading()
        self._inner.write_eof()
        self._protocol.loop.call_later(LINGER_SECONDS, self._inner.close)

    def is_closing(self) -> bool:
        return self.is_lingering or self._inner.is_closing()

    def abort(self) -> None:
        self._inner.abort()

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self._inner.write(data)

    def pause_reading(self) -> None:
        self._inner.pause_reading()

    def resume_reading(self) -> None:
        self._inner.resume_reading()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._inner.get_extra_info(name, default)

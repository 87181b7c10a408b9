"""HTTP for clients that read late: with patience for those who send first, and bounds for those who never read."""

from __future__ import annotations

import asyncio

from chiasm.server.head_limit import BoundedHttpProtocol

STALLED_SECONDS = 60.0
"""After so long without room for more of an answer, its client is taken to be gone."""

MAX_DROPPED_BYTES = 256 * 2**20
"""Of a body that come after its answer."""


class ReadHttpProtocol(BoundedHttpProtocol):
    """Drops bodies that have been refused, and closes the connection of a client that doesn't read.

    Most clients look for an answer when they have sent everything. If the connection of a body that is too large were
    closed at once, the system would tell them of a broken connection, and they would never see why.
    """

    _giving_up: asyncio.TimerHandle | None = None
    _dropped_bytes = 0

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of a body, or drop it."""
        super().on_body(body)
        if self.cycle.response_complete:
            self._dropped_bytes += len(body)
            if self._dropped_bytes > MAX_DROPPED_BYTES:
                self.transport.close()

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

"""HTTP parsing with a bound on what a client may send before its request means anything."""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec

from chiasm.server.errors import ErrorBody, ErrorInfo
from chiasm.server.no_upgrade import NoUpgradeProtocol

MAX_HEAD_BYTES = 64 * 2**10
HEAD_SECONDS = 30.0


class BoundedHttpProtocol(NoUpgradeProtocol):
    """The parser, which by itself would collect headers without end.

    It counts the bytes since the parser last handed something over (a head, a piece of a body, the end of a
    message). That covers a header, a URL, a trailer and a chunk extension alike, whatever their number and length.
    The bound is loose by what one read from the socket brings. A head must also arrive in time, counted from the
    moment that the server begins to wait for it, or clients that send a byte now and then would hold connections
    for ever.
    """

    _silent_bytes = 0
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what arrived."""
        self._silent_bytes += len(data)
        super().data_received(data)
        if self._silent_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"At most {MAX_HEAD_BYTES} bytes of headers.")

    def on_headers_complete(self) -> None:
        """Start the request."""
        self._have_head()
        self._silent_bytes = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """Pass on a piece of a body."""
        self._silent_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request's body."""
        self._silent_bytes = 0
        super().on_message_complete()

    def on_message_begin(self) -> None:
        """Begin to wait for the rest of a request's head."""
        super().on_message_begin()
        self._have_head()
        self._await_head()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _await_head(self) -> None:
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _have_head(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        if self._silent_bytes == 0:  # browsers open connections for what they may want later: no answer to no request
            self.transport.close()
        elif not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_TIMEOUT, f"A request's head must arrive within {HEAD_SECONDS:g} seconds.")

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        if self.cycle is None or self.cycle.response_complete:  # else an answer is under way: no place for another
            body = msgspec.json.encode(ErrorBody(ErrorInfo(message, status.phrase, None, status.value)))
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

"""HTTP parsing with a bound on what a client may send before its request means anything."""

from __future__ import annotations

from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from chiasm.server.errors import ErrorBody, ErrorInfo

MAX_HEAD_BYTES = 64 * 2**10


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's fast parser, which by itself would collect headers without end.

    It counts the bytes since the parser last handed something over (a head, a piece of a body, the end of a
    message). That covers a header, a URL, a trailer and a chunk extension alike, whatever their number and length.
    The bound is loose by what one read from the socket brings.
    """

    _silent_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Parse what arrived."""
        self._silent_bytes += len(data)
        super().data_received(data)
        if self._silent_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, f"At most {MAX_HEAD_BYTES} bytes of headers.")

    def on_headers_complete(self) -> None:
        """Start the request."""
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

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not HTTP."""
        self._refuse(HTTPStatus.BAD_REQUEST, msg)

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        if self.cycle is None or self.cycle.response_complete:  # else an answer is under way: no place for another
            body = msgspec.json.encode(ErrorBody(ErrorInfo(message, status.phrase, None, status.value)))
            head = (
                f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + body)
        self.transport.close()

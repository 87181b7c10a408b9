"""HTTP that stays what it is: requests to go on in another protocol are answered as if they had not asked."""

from __future__ import annotations

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol


class NoUpgradeProtocol(HttpToolsProtocol):
    """uvicorn's fast parser, for clients that offer HTTP/2 with their first request, as Java's and curl's do.

    The parser takes whatever follows such a head for the other protocol's, the body too. The head is parsed once more
    without the offer (RFC 9110, section 7.8: a server may ignore it), and what follows it as its body.
    """

    def data_received(self, data: bytes) -> None:
        """Parse what arrived."""
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.logger.warning("Invalid HTTP request received.")
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        """Start the request, unless its head is to be parsed once more."""
        if not self._is_offer:
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End the request's body."""
        if not self._is_offer:
            super().on_message_complete()

    @property
    def _is_offer(self) -> bool:
        return self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers)

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._is_offer:
                head = self._head_without_offer()
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
                self._feed(head + data[upgrade.args[0] :])

    def _head_without_offer(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

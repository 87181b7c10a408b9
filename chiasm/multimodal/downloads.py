"""How many bytes of downloaded media are held at a time: a request of a hundred bytes can ask for gigabytes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from chiasm.errors import OverloadedError, UserError


class RequestEndedError(Exception):
    """A download went on for a moment after its request had ended."""


class DownloadGauge:
    """Bounds what all requests together hold until their media are decoded.

    Requests begin and end in one thread, and their downloads grow in another.

    Args:
        limit: in bytes.

    Attributes:
        num_bytes: that are held.
        lock: of all counts.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.num_bytes = 0
        self.lock = threading.Lock()

    @contextmanager
    def request(self) -> Iterator[HeldDownloads]:
        """The downloads of one request, which are let go at the end."""
        held = HeldDownloads(self)
        try:
            yield held
        finally:
            with self.lock:
                self.num_bytes -= held.num_bytes
                held.is_open = False


class HeldDownloads:
    """What one request has downloaded.

    Attributes:
        num_bytes: so far.
        is_open: whether it still counts.
    """

    def __init__(self, gauge: DownloadGauge) -> None:
        self._gauge = gauge
        self.num_bytes = 0
        self.is_open = True

    def grow(self, num_bytes: int, param: str | None = None) -> None:
        """Count bytes that have arrived.

        Raises:
            UserError: 422 if the request's are too many by themselves.
            OverloadedError: if those of all requests are.
            RequestEndedError: if the request has ended meanwhile.
        """
        with self._gauge.lock:
            self._check(num_bytes, param)
            self._gauge.num_bytes += num_bytes
            self.num_bytes += num_bytes

    def _check(self, num_bytes: int, param: str | None) -> None:
        if not self.is_open:
            raise RequestEndedError
        limit = self._gauge.limit
        if self.num_bytes + num_bytes > limit:
            message = f"the request's media must have at most {limit} bytes together (max_download_bytes_in_flight)."
            raise UserError(message, param=param, status=422)
        if self._gauge.num_bytes + num_bytes > limit:
            raise OverloadedError(f"The server holds media of {self._gauge.num_bytes} bytes, of at most {limit}.")

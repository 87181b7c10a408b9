"""How much a server takes on at a time: requests, the answers they ask for, and the bytes that they brought."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from chiasm.errors import OverloadedError, UserError

_REMEMBERED = 64  # ends of answers from which the rate is taken
_MAX_RETRY_AFTER = 60
_MARKS = (b",", b"[", b"{")  # of values in JSON: rare in texts, and absent in pictures
_VALUE_BYTES = 100  # that a decoded value takes beside its text: between an integer's 40 and a small object's 200


class Admission:
    """Counts what is under way and turns away what goes beyond a limit.

    Args:
        max_answers: being made or waited for at a time.
        max_body_bytes: of bodies whose requests are not answered yet.

    Attributes:
        num_answers: being made or waited for.
        num_body_bytes: of such bodies.
    """

    def __init__(self, max_answers: int, max_body_bytes: int) -> None:
        self._max_answers = max_answers
        self._max_body_bytes = max_body_bytes
        self.num_answers = 0
        self.num_body_bytes = 0
        self._num_requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._ends: deque[float] = deque(maxlen=_REMEMBERED)

    @contextmanager
    def request(self, declared_bytes: int) -> Iterator[HeldBody]:
        """Take up a request before its body is read; it may fail all the same once that says what it asks for.

        Args:
            declared_bytes: that its body will have, as far as is known; it is counted as it arrives.

        Raises:
            OverloadedError: if no answer more is taken on, or the body would not fit.
        """
        if self.num_answers >= self._max_answers:
            raise self._busy(1)
        self._check_bytes(declared_bytes)
        body = HeldBody(self)
        self._num_requests += 1
        self._idle.clear()
        try:
            yield body
        finally:
            self.num_body_bytes -= body.num_bytes
            self._num_requests -= 1
            if self._num_requests == 0:
                self._idle.set()

    @contextmanager
    def admit(self, num_answers: int, param: str = "n") -> Iterator[None]:
        """Hold places for some answers. Asked before any media is fetched: a refused request must cost nothing.

        Args:
            num_answers: that are asked for.
            param: the field that asks for so many, for errors.

        Raises:
            UserError: if there are never so many.
            OverloadedError: if there are not enough now.
        """
        if num_answers > self._max_answers:
            limit = f"at most {self._max_answers} may be asked for at a time (max_queue)"
            raise UserError(f"{param} asks for {num_answers} answers; {limit}.", param=param)
        if self.num_answers + num_answers > self._max_answers:
            raise self._busy(num_answers)
        self.num_answers += num_answers
        try:
            yield
        finally:
            self.num_answers -= num_answers
            self._ends.extend([time.monotonic()] * min(num_answers, _REMEMBERED))

    async def wait_idle(self) -> None:
        """Wait until no request is under way."""
        await self._idle.wait()

    def hold(self, num_bytes: int) -> None:
        """Count a piece of a body.

        Raises:
            OverloadedError: if it does not fit.
        """
        self._check_bytes(num_bytes)
        self.num_body_bytes += num_bytes

    def _check_bytes(self, num_bytes: int) -> None:
        if self.num_body_bytes + num_bytes > self._max_body_bytes:
            message = f"The server is busy: bodies of at most {self._max_body_bytes} bytes at a time."
            raise OverloadedError(message, retry_after=self._seconds_until_free(1), reason="bodies")

    def _busy(self, num_answers: int) -> OverloadedError:
        missing = self.num_answers + num_answers - self._max_answers
        message = f"The server is busy: at most {self._max_answers} answers at a time."
        return OverloadedError(message, retry_after=self._seconds_until_free(missing))

    def _seconds_until_free(self, num_answers: int) -> int:
        """An estimate from the rate at which answers ended lately; with none, a second."""
        if len(self._ends) < 2:
            return 1
        interval = (time.monotonic() - self._ends[0]) / len(self._ends)
        return min(_MAX_RETRY_AFTER, max(1, math.ceil(num_answers * interval)))


def count_values(json: bytes) -> int:
    """About how many values a piece of JSON has, by marks that stand between them."""
    # Looked for first, which is many times faster than counting: a picture's megabytes have none.
    return sum(json.count(mark) for mark in _MARKS if mark in json)


class HeldBody:
    """What one request's body takes.

    Attributes:
        num_bytes: of what has arrived, and of what its values take beyond it when they are decoded.
    """

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.num_bytes = 0

    def grow(self, piece: bytes) -> None:
        """Count a piece that has arrived.

        Raises:
            OverloadedError: if bodies of all requests together are too large now.
        """
        num_bytes = len(piece) + _VALUE_BYTES * count_values(piece)
        self._admission.hold(num_bytes)
        self.num_bytes += num_bytes

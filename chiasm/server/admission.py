"""How many answers the server takes on at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from chiasm.errors import OverloadedError


class Admission:
    """Counts the answers being made or waited for, and turns away what goes beyond a limit.

    It is asked before any media is fetched: a refused request must cost nothing.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._in_flight = 0

    @contextmanager
    def admit(self, num_answers: int) -> Iterator[None]:
        """Hold places for some answers.

        Raises:
            OverloadedError: if there are not enough.
        """
        if self._limit is not None and self._in_flight + num_answers > self._limit:
            raise OverloadedError(f"The server is busy: at most {self._limit} answers at a time.")
        self._in_flight += num_answers
        try:
            yield
        finally:
            self._in_flight -= num_answers

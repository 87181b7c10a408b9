"""What is written of what others can cause."""

from __future__ import annotations

import logging

from chiasm.logs import Seldom


def record(message: str, *args: object) -> logging.LogRecord:
    return logging.LogRecord("x", logging.WARNING, "x.py", 1, message, args, None)


def test_a_message_passes_seldom_and_tells_of_the_others() -> None:
    now = 100.0
    seldom = Seldom(10.0, lambda: now)
    assert seldom.filter(record("bad request of %s", "a"))
    assert not any(seldom.filter(record("bad request of %s", "b")) for _ in range(3))
    assert seldom.filter(record("another"))
    now = 110.0
    last = record("bad request of %s", "c")
    assert seldom.filter(last)
    assert last.getMessage() == "bad request of c (3 more since the last time)"
    assert not seldom.filter(record("bad request of %s", "d"))

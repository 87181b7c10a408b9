"""Logging: one format for every process, with the process's role in each line."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable

_FORMAT = "%(asctime)s %(levelname)s {role} %(name)s: %(message)s"


def configure_logging(role: str, level: str = "INFO") -> None:
    """Send this process's log to standard error, each line marked with ``role`` (``server``, ``rank 0``).

    Warnings of libraries go there, too.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT.format(role=role), datefmt="%H:%M:%S"))
    root = logging.getLogger("chiasm")
    root.setLevel(level.upper())
    for logger in (root, logging.getLogger("py.warnings")):
        logger.handlers[:] = [handler]
        logger.propagate = False
    logging.captureWarnings(True)


class Seldom(logging.Filter):
    """Lets a message pass once in ``seconds``, whatever its arguments, and says then how many were left out.

    For what others can cause as often as they like.
    """

    def __init__(self, seconds: float = 10.0, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._seconds = seconds
        self._clock = clock
        self._passed: dict[str, tuple[float, int]] = {}  # when last, and how many were left out since

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a record is written."""
        message, now = str(record.msg), self._clock()
        last, num_left_out = self._passed.get(message, (-self._seconds, 0))
        if now - last < self._seconds:
            self._passed[message] = (last, num_left_out + 1)
            return False
        self._passed[message] = (now, 0)
        if num_left_out:
            record.msg = f"{message} ({num_left_out} more since the last time)"
        return True


def get_logger(name: str) -> logging.Logger:
    """The logger of one module; pass ``__name__``, also in a module that is run as a program."""
    return logging.getLogger("chiasm" if name == "__main__" else name)

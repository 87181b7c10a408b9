"""Logging: one format for every process, with the process's role in each line."""

from __future__ import annotations

import logging
import sys

_FORMAT = "%(asctime)s %(levelname)s {role} %(name)s: %(message)s"


def configure_logging(role: str, level: str = "INFO") -> None:
    """Send this process's log to standard error, each line marked with ``role`` (``server``, ``rank 0``)."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT.format(role=role), datefmt="%H:%M:%S"))
    root = logging.getLogger("chiasm")
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def get_logger(name: str) -> logging.Logger:
    """The logger of one module; pass ``__name__``, also in a module that is run as a program."""
    return logging.getLogger("chiasm" if name == "__main__" else name)

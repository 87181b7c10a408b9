"""The errors that a user can cause or must hear about. Everything else is a bug and raises as such."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from typing import Literal, NoReturn

Shortage = Literal["queue", "bodies", "pixels", "watchers"]


class UserError(ValueError):
    """A request or a setting that can't be served as asked.

    Attributes:
        message: one sentence for the user: the field, its value and the limit. Never a traceback, a path of the
            server or the text of a decoder's exception.
        param: the request field or the flag at fault, in the user's words (``"temperature"``).
        status: the HTTP status that a server answers with; 400 unless a narrower one is true.
        may_pass: whether the same may be served in a moment: what is at fault is a host that a request names.
    """

    def __init__(self, message: str, *, param: str | None = None, status: int = 400, may_pass: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.status = status
        self.may_pass = may_pass


class EngineDeadError(RuntimeError):
    """The engine or one of its ranks has stopped for good; nothing more can be served by this process."""


class OverloadedError(RuntimeError):
    """The engine takes no more work now; the client may try again after ``retry_after`` seconds.

    Attributes:
        message: one sentence for the user.
        retry_after: seconds until it is worth another try.
        reason: what there is no room for; a label of the metric that counts refusals.
    """

    def __init__(self, message: str, *, retry_after: int = 1, reason: Shortage = "queue") -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        self.reason: Shortage = reason


def refuse(param: str, value: object, limit: str, *, status: int = 400) -> NoReturn:
    """Raise the one form of "this value is out of bounds" that users see.

    Args:
        param: the field at fault.
        value: what was given; shown shortened.
        limit: what would be accepted, as it follows "must be".
        status: HTTP status to answer with.

    Raises:
        UserError: always.
    """
    raise UserError(f"{param} must be {limit}, got {shorten(value)}.", param=param, status=status)


def refuse_unserved(param: str, value: object) -> NoReturn:
    """Raise the one form of "what this asks for is known, and not served".

    Raises:
        UserError: always.
    """
    raise UserError(f"{param} is not served by this version, got {shorten(value)}.", param=param)


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 80


def shorten(value: object, limit: int = 80) -> str:
    """``repr`` of a value, cut to ``limit`` characters, so that an error never echoes a whole request.

    Only the beginning and the end of a large value are looked at: it may be a request's every byte.
    """
    text = _short.repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def list_names(names: Iterable[str], limit: int = 8) -> str:
    """The first ``limit`` of some names in order, and how many more there are."""
    names = sorted(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def require_known_keys(param: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse a mapping that has a key nobody would read.

    Raises:
        UserError: naming the first unknown key and all that are known.
    """
    known = sorted(known)
    for key in given:
        if key not in known:
            raise UserError(f"{param} has an unknown key {shorten(key)}; known: {', '.join(known)}.", param=param)

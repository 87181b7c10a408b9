"""How a family of models writes the calls of tools: what every format has to say."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import msgspec

from chiasm.schema.structured import CallFrame

Tools = Mapping[str, Mapping[str, Any]]
"""The functions that may be called: name -> JSON schema of the arguments."""


class Call(NamedTuple):
    """A call that is whole.

    Attributes:
        name: of the function.
        arguments: a JSON object as text.
    """

    name: str
    arguments: str


class CallName(NamedTuple):
    """A call begins."""

    name: str


class CallText(NamedTuple):
    """More of the arguments of the call that began last."""

    text: str


CallPart = CallName | CallText


class Reading(NamedTuple):
    """What a reader has found out.

    Attributes:
        parts: what is certain of calls now, and was not before.
        state: ``open`` as long as more may follow, ``done`` when the calls have ended, ``text`` if this isn't a call
            after all and is to be shown as it is, which is possible only until the first part.
        num_rest: characters at the end of the text so far that don't belong to it, unless it is open.
    """

    parts: tuple[CallPart, ...] = ()
    state: Literal["open", "done", "text"] = "open"
    num_rest: int = 0


def whole_calls(calls: Iterable[Call] | None, num_rest: int) -> Reading:
    """What a reader says that knows calls only when they have ended; None if these are none."""
    if calls is None:
        return Reading(state="text", num_rest=num_rest)
    parts = [part for call in calls for part in (CallName(call.name), CallText(call.arguments))]
    return Reading(tuple(parts), "done", num_rest)


class CallReader(Protocol):
    """Reads one call, or one list of calls, from behind its opening."""

    def feed(self, text: str) -> Reading:
        """Take in text. What is read must not depend on how it is cut."""


@dataclass(frozen=True)
class CallFormat:
    """One way to write calls.

    Attributes:
        openers: markers that begin a call wherever they stand.
        bare: characters that may begin one at the start of an answer.
        again: characters that begin one more behind a call whose opener has not been closed.
        closers: markers that are dropped where they follow a call, and what stands before one that closes an opener.
        separators: characters that are dropped between two calls, beside white space.
        frame: around calls that are JSON, where a grammar can make them; None where it can't.
        reader: makes a reader for the text behind an opener, or from a bare character on.
        drops_markers: whether its markers are never text, also where they are not around a call; behind a closer a
            call may begin as at the start of an answer.
    """

    openers: tuple[str, ...]
    bare: str
    again: str
    closers: tuple[str, ...]
    separators: str
    reader: Callable[[Tools], CallReader]
    frame: CallFrame | None = None
    drops_markers: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        """All of its markers."""
        return (*self.openers, *self.closers)

    @property
    def markers_in_text(self) -> tuple[str, ...]:
        """Those that mean something wherever they stand."""
        return self.markers if self.drops_markers else self.openers


class _Written(msgspec.Struct):
    """A call as JSON; Llama's templates say ``parameters``."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw()
    parameters: msgspec.Raw = msgspec.Raw()


def decode_call(text: str, known: Collection[str] | None = None) -> Call | None:
    """A call from ``{"name": ..., "arguments": {...}}``.

    Args:
        text: a JSON object.
        known: names that a call may have; None for any.

    Returns:
        None if it is none: not valid JSON, without a name, or with arguments that are no object.
    """
    try:
        written = msgspec.json.decode(text, type=_Written)
        arguments = _object_text(bytes(written.arguments or written.parameters))
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    if arguments is None or not written.name or (known is not None and written.name not in known):
        return None
    return Call(written.name, arguments)


def _object_text(raw: bytes) -> str | None:
    """Arguments as the model wrote them; some write the object once more as a string, or nothing, or null."""
    if raw.startswith(b'"'):
        raw = msgspec.json.decode(raw, type=str).strip().encode()
        msgspec.json.decode(raw)
    if raw in (b"", b"null"):
        return "{}"
    return raw.decode() if raw.startswith(b"{") else None

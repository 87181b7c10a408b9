"""What an answer's text turns out to be, piece by piece."""

from __future__ import annotations

from typing import NamedTuple


class ReasoningText(NamedTuple):
    """More of what the model thinks before it answers."""

    text: str


class ContentText(NamedTuple):
    """More of the answer itself."""

    text: str


class CallStart(NamedTuple):
    """A call begins; its name is whole.

    Attributes:
        number: counts an answer's calls from 0.
        name: of the function.
    """

    number: int
    name: str


class CallArguments(NamedTuple):
    """More of a call's arguments, which are the text of a JSON object.

    Attributes:
        number: of the call that was started last.
        text: what is new.
    """

    number: int
    text: str


Event = ReasoningText | ContentText | CallStart | CallArguments

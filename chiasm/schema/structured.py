"""What the text of an answer has to look like."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from chiasm.errors import UserError, refuse

MAX_CHARS = 128 * 1024  # of a schema, an expression or a grammar
MAX_DEPTH = 32  # of a schema, in lists and objects within each other
MAX_CHOICES = 1024
_KINDS = ("json", "regex", "choice", "grammar", "json_object")
_NEVER_FALSE = ("json", "regex", "choice", "grammar")


class Thinking(msgspec.Struct, frozen=True):
    """The tokens around reasoning, which no grammar binds, but which the answer can't end with.

    Attributes:
        start: begins it; allowed as an answer's first token.
        end: ends it.
        is_open: whether the prompt has begun it.
        barred: tokens that it can't have, beside those that end an answer.
    """

    start: int
    end: int
    is_open: bool
    barred: tuple[int, ...] = ()


class CallFrame(NamedTuple):
    """What a model writes around calls that are JSON objects, as its chat template asks for them.

    Attributes:
        before: a call.
        arguments: name of the field that holds the arguments, behind ``name``.
        after: a call.
        between: two calls.
    """

    before: str
    arguments: str
    after: str
    between: str


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True):
    """A form that an answer must have, under the names that vLLM uses. Exactly one of the first five is given.

    Attributes:
        json: a JSON schema: its text, or the object, which becomes text.
        regex: an expression that matches all of the answer, in the syntax of Rust's ``regex`` crate.
        choice: texts of which the answer is one.
        grammar: a context-free grammar in llguidance's Lark, or in GBNF.
        json_object: any JSON object.
        param: the field of the request that asks for it, for errors.
        thinking: what the model may say before; None if nothing.

    Raises:
        UserError: for none or several of them, or one that is too large.
    """

    json: str | None = None
    regex: str | None = None
    choice: tuple[str, ...] | None = None
    grammar: str | None = None
    json_object: bool = False
    param: str = "structured_outputs"
    thinking: Thinking | None = None

    def __post_init__(self) -> None:
        """Give every field its own type, and check its size."""
        given = [kind for kind in _KINDS if asks(kind, getattr(self, kind))]
        if len(given) != 1:
            found = " and ".join(given) or "none"
            raise UserError(f"{self.param} must have one of {', '.join(_KINDS)}, got {found}.", param=self.param)
        kind = given[0]
        if kind == "json":
            msgspec.structs.force_setattr(self, "json", schema_text(self.json, self.param))
        elif kind == "choice":
            msgspec.structs.force_setattr(self, "choice", _choices(self.choice, self.param))
        elif kind == "json_object" and self.json_object is not True:
            refuse(self.param, self.json_object, "true or false in json_object")
        elif kind in ("regex", "grammar"):
            check_text(getattr(self, kind), self.param)

    @property
    def key(self) -> StructuredOutputs:
        """The same for all forms that are alike to a compiler."""
        return msgspec.structs.replace(self, param="", thinking=None)


def asks(key: str, value: object) -> bool:
    """Whether a key of a form asks for anything; false is no schema, and no other text."""
    return value is not None and (value is not False or key in _NEVER_FALSE)


def check_text(text: object, param: str) -> None:
    """Refuse what is no text, or too long.

    Raises:
        UserError: with both numbers.
    """
    if not isinstance(text, str) or not text:
        refuse(param, text, "a text that is not empty")
    if len(text) > MAX_CHARS:
        refuse(param, f"{len(text)} characters", f"at most {MAX_CHARS} characters long")


def schema_text(schema: object, param: str) -> str:
    """A JSON schema as text.

    Raises:
        UserError: if it is none, too long or too deep.
    """
    value = _decode(schema, param) if isinstance(schema, str) else schema
    if not isinstance(value, Mapping):
        refuse(param, value, "a JSON schema: an object")
    check_depth(value, param)
    try:
        text = msgspec.json.encode(value).decode()
    except (TypeError, ValueError) as error:
        raise UserError(f"{param} must be made of the types that JSON has.", param=param) from error
    check_text(text, param)
    return text


def check_depth(value: object, param: str) -> None:
    """Refuse what is nested deeper than ``MAX_DEPTH``.

    Raises:
        UserError: naming the limit.
    """
    level, depth = [value], 0
    while level := [entry for value in level for entry in _entries(value)]:
        depth += 1
        if depth > MAX_DEPTH:
            refuse(param, "more", f"nested at most {MAX_DEPTH} deep")


def _entries(value: object) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _decode(text: str, param: str) -> object:
    check_text(text, param)
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise UserError(f"{param} is not valid JSON: {str(error)[:200]}.", param=param) from error


def _choices(choices: object, param: str) -> tuple[str, ...]:
    if not isinstance(choices, list | tuple) or not choices or not all(isinstance(c, str) and c for c in choices):
        refuse(param, choices, "a list of texts that are not empty")
    if len(choices) > MAX_CHOICES:
        refuse(param, f"{len(choices)} choices", f"at most {MAX_CHOICES} choices")
    check_text("".join(choices), param)
    return tuple(choices)

"""Calls as Llama 4 writes them: the answer is calls and nothing else.

Its published template asks for ``{"name": "f", "parameters": {...}}``, others for ``[f(a=1, b="x"), g()]``. Both are
read whatever the template, and lists of such objects. Anything else than calls of the request's tools is just text.
Nothing is evaluated: the values are literals, read here.

``<|python_start|>`` and ``<|python_end|>`` may stand around calls. The template itself writes them around what an
earlier answer says before its calls, which may be nothing, and models do so after it. They are no text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import replace
from typing import Any

import msgspec

from chiasm.parsers.calls import Call, CallFormat, CallReader, Reading, Tools, decode_call, whole_calls
from chiasm.parsers.json_calls import ObjectReader
from chiasm.schema.structured import CallFrame

MAX_DEPTH = 32

# As far as it goes, of the beginning of a list of calls; of limited length, for it is read again with each piece.
_HEAD = re.compile(r"\[\s{0,64}(?:(\{)|[\w.\-]{1,64}\s{0,64}(\()?)?")
_MAX_SPACE = 64  # characters before a call
_OUTSIDE = re.compile(r"[()\[\]{}'\"]")
_TOKEN = re.compile(
    r"\s*(?:(?P<function>[\w.\-]{1,64}+(?=\s*\())|(?P<string>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<number>[-+]?+(?:\d++\.?+\d*+|\.\d++)(?:[eE][-+]?+\d++)?+)(?![\w.])"
    r"|(?P<name>[A-Za-z_][\w.\-]*)|(?P<mark>[()\[\]{},=:]))",
    re.DOTALL,
)
_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\\": "\\", "'": "'", '"': '"', "\n": ""}
_NAMED = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
_CLOSING = {"(": ")", "[": "]", "{": "}"}


class _Reader:
    """Reads an object or a list, as the first character tells."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._space = ""
        self._reader: CallReader | None = None

    def feed(self, text: str) -> Reading:
        """See ``CallReader``."""
        if self._reader is None:
            text = self._space + text
            rest = text.lstrip()
            self._space = text[: len(text) - len(rest)]
            if len(self._space) > _MAX_SPACE or (rest and rest[0] not in "[{"):
                return Reading(state="text", num_rest=len(rest))
            if not rest:
                return Reading()
            self._reader = _ListReader(self._tools) if rest[0] == "[" else ObjectReader(self._tools.keys())
            text = rest
        return self._reader.feed(text)


class _ListReader:
    """Follows the brackets up to the last one, each character looked at once."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._text: list[str] = []
        self._head = ""  # as long as it may still be something else
        self._is_list = False
        self._depth = 0
        self._quote = ""
        self._is_escaped = False

    def feed(self, text: str) -> Reading:
        """See ``CallReader``."""
        if not self._is_list:
            self._head += text
            head = _HEAD.match(self._head)
            assert head is not None
            self._is_list = head.lastindex is not None
            if not self._is_list:
                num_left = len(self._head) - head.end()
                return Reading(state="text", num_rest=num_left) if num_left else Reading()
            text = self._head
        end = self._end(text)
        self._text.append(text[:end])
        if end is None:
            return Reading()
        calls = None if self._depth else self._read("".join(self._text))
        if calls is not None and not all(call.name in self._tools for call in calls):
            calls = None
        return whole_calls(calls, len(text) - end)

    def _read(self, text: str) -> tuple[Call, ...] | None:
        return read_objects(text, self._tools) if text[1:].lstrip().startswith("{") else read_calls(text)

    def _end(self, text: str) -> int | None:
        """Behind the last bracket, or where it gets too deep."""
        position = 0
        while position < len(text):
            if self._quote:
                position = self._skip_string(text, position)
                continue
            found = _OUTSIDE.search(text, position)
            if found is None:
                return None
            position = found.end()
            if found[0] in "'\"":
                self._quote = found[0]
                continue
            self._depth += 1 if found[0] in _CLOSING else -1
            if not 0 < self._depth <= MAX_DEPTH:
                return position
        return None

    def _skip_string(self, text: str, position: int) -> int:
        if self._is_escaped:
            self._is_escaped = False
            return position + 1
        while position < len(text):
            char = text[position]
            position += 1
            if char == self._quote:
                self._quote = ""
                break
            if char == "\\":
                self._is_escaped = True
                break
        return position


def read_objects(text: str, known: Collection[str]) -> tuple[Call, ...] | None:
    """The calls of ``[{"name": "f", "parameters": {}}, ...]``, or None if it is no such list."""
    try:
        listed = msgspec.json.decode(text, type=list[msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    calls = [decode_call(bytes(entry).decode(), known) for entry in listed]
    found = tuple(call for call in calls if call is not None)
    return found if len(found) == len(calls) else None


def read_calls(text: str) -> tuple[Call, ...] | None:
    """The calls of ``[f(a=1), g()]``, or None if it is no such list."""
    try:
        return _Literals(text).calls()
    except (ValueError, OverflowError):
        return None


class _Literals:
    """Reads the text of a list of calls from left to right.

    Its methods raise ``ValueError`` for what is no literal, or too deep.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._kind, self._token = "", ""
        self._next()

    def calls(self) -> tuple[Call, ...]:
        calls = [self._call() for _ in self._entries("[")]
        if self._kind or not calls:
            raise ValueError("no list of calls")
        return tuple(calls)

    def _call(self) -> Call:
        name = self._take("function")
        arguments = {}
        for _ in self._entries("("):
            key = self._take("name")
            self._take("mark", "=")
            if key in arguments:
                raise ValueError("an argument is given twice")
            arguments[key] = self._value(1)
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
        text.encode()  # half of a surrogate pair is no text
        return Call(name, text)

    def _value(self, depth: int) -> Any:
        if depth > MAX_DEPTH:
            raise ValueError("too deep")
        kind, word = self._kind, self._token
        if kind == "string":
            return self._string()
        if kind == "number":
            self._next()
            return float(word) if set(word) & set(".eE") else int(word)
        if kind == "name":
            self._next()
            if word not in _NAMED:
                raise ValueError("a name")
            return _NAMED[word]
        if word == "{":
            return dict(self._entry(depth) for _ in self._entries("{"))
        return [self._value(depth + 1) for _ in self._entries("(" if word == "(" else "[")]

    def _entry(self, depth: int) -> tuple[str, Any]:
        key = self._string()
        self._take("mark", ":")
        return key, self._value(depth + 1)

    def _string(self) -> str:
        """A string, or several behind one another, which Python joins."""
        parts = [self._take("string")]
        while self._kind == "string":
            parts.append(self._take("string"))
        return "".join(_ESCAPE.sub(_unescape, part[1:-1]) for part in parts)

    def _entries(self, opening: str) -> Iterator[None]:
        """Goes on to each entry between brackets, of which the last may have a comma behind it."""
        self._take("mark", opening)
        closing = _CLOSING[opening]
        while self._token != closing or self._kind != "mark":
            yield
            if self._token == closing and self._kind == "mark":
                break
            self._take("mark", ",")
        self._next()

    def _take(self, kind: str, token: str | None = None) -> str:
        taken = self._token
        if self._kind != kind or token not in (None, taken):
            raise ValueError(f"no {kind}")
        self._next()
        return taken

    def _next(self) -> None:
        found = _TOKEN.match(self._text, self._position)
        if found is None:
            if self._text[self._position :].strip():
                raise ValueError("no token")
            self._kind, self._token = "", ""
            return
        self._position = found.end()
        self._kind = found.lastgroup or ""
        self._token = found[self._kind]


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if code[0] in "uUx" and len(code) > 1:
        return chr(int(code[1:], 16))
    return _ESCAPES.get(code, match[0])


LLAMA4_PYTHONIC = CallFormat(
    openers=("<|python_start|>",),
    bare="[{",
    again="[{",
    closers=("<|python_end|>",),
    separators=";,",
    reader=_Reader,
    drops_markers=True,
)
LLAMA4_JSON = replace(LLAMA4_PYTHONIC, frame=CallFrame("", "parameters", "", "; "))
"""The same for models that are asked for JSON, of which a grammar can make calls."""

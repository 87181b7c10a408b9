"""Calls as GLM-4.5 and GLM-4.5V write them:

``<tool_call>f``, then for each argument ``<arg_key>a</arg_key>`` and ``<arg_value>1</arg_value>``, then
``</tool_call>``, with line breaks in between. A text stands as it is, anything else as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from chiasm.parsers.calls import Call, CallFormat, Reading, Tools
from chiasm.parsers.markers import find_marker

_OPENER, _CLOSER = "<tool_call>", "</tool_call>"
_KEY = ("<arg_key>", "</arg_key>")
_VALUE = ("<arg_value>", "</arg_value>")
_NAME = re.compile(r"\s*[\w.\-]{1,128}\s*")
_HEAD = re.compile(r"\s*[\w.\-]{0,128}\s*")  # as far as the name has come


class _Reader:
    """Reads up to the closing tag: a name alone is whole only there."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._text: list[str] = []
        self._end = ""  # of the text so far: all of it while it may be a name, then what may begin a tag
        self._has_name = False

    def feed(self, text: str) -> Reading | None:
        """See ``CallReader``."""
        recent = self._end + text
        if not self._has_name:
            head = _HEAD.match(recent)
            assert head is not None
            self._has_name = head.end() < len(recent)
            if self._has_name and recent[head.end()] != "<":
                return Reading(None, len(recent) - head.end())
        found = find_marker(recent, (_OPENER, _CLOSER))
        if not found.marker:
            self._text.append(text)
            self._end = recent[-len(_CLOSER) :] if self._has_name else recent
            return None
        if found.marker == _OPENER:
            return Reading(None, len(recent) - found.start)
        num_rest = len(recent) - found.start - len(_CLOSER)
        body = "".join((*self._text, text)).removesuffix(recent[found.start :])
        call = _parse(body, self._tools)
        return Reading(None if call is None else (call,), num_rest)


def _parse(body: str, tools: Tools) -> Call | None:
    """The call of what stands between the tags."""
    name = _NAME.match(body)
    if name is None:
        return None
    properties = tools.get(name[0].strip(), {}).get("properties")
    arguments: dict[str, Any] = {}
    position = name.end()
    while position < len(body):
        key = _between(body, position, _KEY)
        value = None if key is None else _between(body, key[1], _VALUE)
        if key is None or value is None:
            return None
        arguments[key[0].strip()] = _value(value[0], properties, key[0].strip())
        position = value[1]
    if not arguments and name[0].strip() not in tools:
        return None  # a word between tags can be anything
    return Call(name[0].strip(), json.dumps(arguments, ensure_ascii=False))


def _between(body: str, position: int, tags: tuple[str, str]) -> tuple[str, int] | None:
    """The text between two tags of which the first is next, and where the one that follows is to stand."""
    start = position + len(tags[0])
    end = body.find(tags[1], start)
    if not body.startswith(tags[0], position) or end < 0:
        return None
    after = end + len(tags[1])
    while after < len(body) and body[after].isspace():
        after += 1
    return body[start:end], after


def _value(text: str, properties: object, key: str) -> Any:
    """A value as the tool's schema has it: text where that allows text, else JSON where it is some."""
    schema = properties.get(key) if isinstance(properties, Mapping) else None
    types = _types(schema)
    if "string" in types and not (text == "null" and "null" in types):
        return text
    try:
        return msgspec.json.decode(text.strip())
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text


def _types(schema: object) -> set[str]:
    """The types that a schema names, by itself or in its alternatives."""
    if not isinstance(schema, Mapping):
        return set()
    named = schema.get("type")
    types = {kind for kind in (named if isinstance(named, list) else [named]) if isinstance(kind, str)}
    values = schema.get("enum")
    if isinstance(values, list) and any(isinstance(value, str) for value in values):
        types.add("string")
    for word in ("anyOf", "oneOf"):
        options = schema.get(word)
        for option in options if isinstance(options, list) else []:
            types |= _types(option)
    return types


GLM45 = CallFormat(openers=(_OPENER,), bare="", closers=(_CLOSER,), separators="", reader=_Reader)

"""Calls as GLM-4.5 and GLM-4.5V write them:

``<tool_call>f``, then for each argument ``<arg_key>a</arg_key>`` and ``<arg_value>1</arg_value>``, then
``</tool_call>``, with line breaks in between. A text stands as it is, anything else as JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Set
from typing import Any

import msgspec

from chiasm.parsers.argument_types import ArgumentTypes
from chiasm.parsers.calls import Call, CallFormat, CallName, CallPart, CallText, Reading, Tools, whole_calls
from chiasm.parsers.markers import find_marker

_OPENER, _CLOSER = "<tool_call>", "</tool_call>"
_KEY, _KEY_END = "<arg_key>", "</arg_key>"
_VALUE, _VALUE_END = "<arg_value>", "</arg_value>"
_NAME = re.compile(r"[\w.\-]{0,128}")


class _Reader:
    """Reads up to the closing tag: a name alone is whole only there, and each argument with its value."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools
        self._text = ""  # behind what is done with
        self._pieces: list[str] = []  # of the text before it up to the tag that is looked for
        self._num_held = 0  # characters before it that belong to an argument which isn't whole
        self._step: Callable[[], Reading | None] = self._read_name
        self._name = ""
        self._types = ArgumentTypes({})
        self._key = ""
        self._num_arguments = 0

    def feed(self, text: str) -> Reading:
        """See ``CallReader``."""
        self._text += text
        parts: list[CallPart] = []
        while (reading := self._step()) is not None:
            parts += reading.parts
            if reading.state != "open":
                return reading._replace(parts=tuple(parts))
        return Reading(tuple(parts))

    def _read_name(self) -> Reading | None:
        self._text = self._text.lstrip()
        name = _NAME.match(self._text)
        assert name is not None
        if name.end() == len(self._text):
            return None
        self._name = name[0]
        self._types = ArgumentTypes(self._tools.get(self._name, {}))
        return self._go_on(name.end(), self._read_first_tag) if name[0] else self._broken()

    def _read_first_tag(self) -> Reading | None:
        self._text = self._text.lstrip()
        if self._text and self._text[0] != "<":
            return self._broken()
        return self._read_tag()

    def _read_tag(self) -> Reading | None:
        """The beginning of an argument, or the end of the call."""
        self._num_held = 0
        self._text = self._text.lstrip()
        if self._text.startswith(_CLOSER):
            return self._close()
        return self._read_opening(_KEY, self._read_key)

    def _read_key(self) -> Reading | None:
        marker = self._find(_KEY_END)
        if marker != _KEY_END:
            return self._broken() if marker else None
        self._key = "".join(self._pieces).strip()
        return self._go_on(len(_KEY_END), self._read_value_tag)

    def _read_value_tag(self) -> Reading | None:
        space = len(self._text) - len(self._text.lstrip())
        self._go_on(space, self._read_value_tag)
        return self._read_opening(_VALUE, self._read_value)

    def _read_value(self) -> Reading | None:
        marker = self._find(_VALUE_END)
        if marker != _VALUE_END:
            return self._broken() if marker else None
        value = _value("".join(self._pieces), self._types.of(self._key))
        begin = ", " if self._num_arguments else "{"
        text = f"{begin}{json.dumps(self._key, ensure_ascii=False)}: {json.dumps(value, ensure_ascii=False)}"
        parts = () if self._num_arguments else (CallName(self._name),)
        self._num_arguments += 1
        self._go_on(len(_VALUE_END), self._read_tag)
        return Reading((*parts, CallText(text)))

    def _read_opening(self, tag: str, step: Callable[[], Reading | None]) -> Reading | None:
        """A tag that must be next; ``step`` reads on behind it."""
        if self._text.startswith(tag):
            return self._go_on(len(tag), step)
        may_come = (tag, _CLOSER) if tag == _KEY else (tag,)
        return None if any(one.startswith(self._text) for one in may_come) else self._broken()

    def _find(self, tag: str) -> str:
        """Go up to the tag that comes next: the one that is looked for, or one with which the call ends before it."""
        found = find_marker(self._text, (tag, _OPENER, _CLOSER))
        self._pieces.append(self._text[: found.start])
        self._text = self._text[found.start :]
        self._num_held += found.start
        return found.marker

    def _go_on(self, position: int, step: Callable[[], Reading | None]) -> Reading:
        self._text, self._pieces, self._step = self._text[position:], [], step
        self._num_held += position
        return Reading()

    def _close(self) -> Reading:
        num_rest = len(self._text)  # the tag itself is dropped behind a call, and text behind none
        if self._num_arguments:
            return Reading((CallText("}"),), "done", num_rest)
        # A word between tags can be anything.
        return whole_calls((Call(self._name, "{}"),) if self._name in self._tools else None, num_rest)

    def _broken(self) -> Reading:
        """This is no call, or from the argument on that is being read no more of one."""
        if self._num_arguments:
            return Reading((CallText("}"),), "done", self._num_held + len(self._text))
        return Reading(state="text", num_rest=len(self._text))


def _value(text: str, types: Set[str]) -> Any:
    """A value of one of the types that the tool's schema allows: text where it may be, else JSON where it is some."""
    if "string" in types and not (text == "null" and "null" in types):
        return text
    try:
        return msgspec.json.decode(text.strip())
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text


GLM45 = CallFormat(openers=(_OPENER,), bare="", again="", closers=(_CLOSER,), separators="", reader=_Reader)

"""The two formats in which a call is one JSON object."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Literal

from chiasm.parsers.calls import CallFormat, CallName, CallText, Reading, decode_call, whole_calls
from chiasm.parsers.json_span import JsonSpan
from chiasm.schema.structured import CallFrame

# What comes before the arguments where the keys are in the order that templates ask for; no escapes in the name.
_HEAD = re.compile(
    r'\s*\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"([^"\\\x00-\x1f]{1,128})"\s*,'
    r'\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)
_MAX_HEAD = 512  # characters; a longer one is read, too, but only once it is whole


class ObjectReader:
    """Reads an object; a call is whole with its last brace, whatever follows.

    With the name before the arguments, these are known to be arguments as they come.

    Args:
        known: names that a call may have; None for any.
    """

    def __init__(self, known: Collection[str] | None) -> None:
        self._known = known
        self._stage: Literal["head", "arguments", "tail"] = "head"
        self._span = JsonSpan()
        self._head = ""  # the first of the text
        self._pieces: list[str] = []  # all of it

    def feed(self, text: str) -> Reading:
        """See ``CallReader``."""
        if self._stage == "head":
            return self._feed_head(text)
        return self._feed_arguments(text) if self._stage == "arguments" else self._feed_tail(text)

    def _feed_head(self, text: str) -> Reading:
        if len(self._head) < _MAX_HEAD:
            before, self._head = len(self._head), (self._head + text)[:_MAX_HEAD]
            head = _HEAD.match(self._head)
            if head is not None and (self._known is None or head[1] in self._known):
                self._stage, self._span = "arguments", JsonSpan()
                reading = self._feed_arguments(self._head[head.end() : before] + text[max(head.end() - before, 0) :])
                return reading._replace(parts=(CallName(head[1]), *reading.parts))
        end = self._span.feed(text)
        self._pieces.append(text[:end])
        if end is None:
            return Reading()
        call = None if self._span.is_broken else decode_call("".join(self._pieces), self._known)
        return whole_calls(None if call is None else (call,), len(text) - end)

    def _feed_arguments(self, text: str) -> Reading:
        end = self._span.feed(text)
        parts = (CallText(text[:end]),) if text[:end] else ()
        if end is None:
            return Reading(parts)
        if self._span.is_broken:
            return Reading(parts, "done", len(text) - end)
        self._stage, self._span = "tail", JsonSpan()
        return self._feed_tail(text[end:])._replace(parts=parts)

    def _feed_tail(self, text: str) -> Reading:
        """Behind the arguments: the object's end, or more of its fields, which nobody reads."""
        if not self._span.is_open:
            rest = text.lstrip()
            if rest and rest[0] not in ",}":
                return Reading((), "done", len(rest))  # the last brace is missing
            if not rest:
                return Reading()
            self._span.feed("{")
            text = rest
        end = self._span.feed(text)
        return Reading() if end is None else Reading((), "done", len(text) - end)


# Qwen3-VL's templates ask for <tool_call>{"name": "f", "arguments": {...}}</tool_call>, with line
# breaks inside, once for each call. The tags say that it is a call, whatever its name.
HERMES = CallFormat(
    openers=("<tool_call>",),
    bare="",
    again="{",
    closers=("</tool_call>",),
    separators="",
    reader=lambda _tools: ObjectReader(None),
    frame=CallFrame("<tool_call>\n", "arguments", "\n</tool_call>", "\n"),
)

# Llama 3.1 to 3.3: the answer is {"name": "f", "parameters": {...}} and nothing else; several are parted by
# semicolons. An object that names none of the request's tools is just an answer in JSON.
LLAMA3_JSON = CallFormat(
    openers=("<|python_tag|>",),
    bare="{",
    again="",
    closers=(),
    separators=";",
    reader=lambda tools: ObjectReader(tools.keys()),
    frame=CallFrame("", "parameters", "", "; "),
)

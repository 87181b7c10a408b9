"""The two formats in which a call is one JSON object."""

from __future__ import annotations

from collections.abc import Collection

from chiasm.parsers.calls import CallFormat, Reading, decode_call
from chiasm.parsers.json_span import JsonSpan


class _Reader:
    """Reads an object; a call is whole with its last brace, whatever follows.

    Args:
        known: names that a call may have; None for any.
    """

    def __init__(self, known: Collection[str] | None) -> None:
        self._known = known
        self._span = JsonSpan()
        self._text: list[str] = []

    def feed(self, text: str) -> Reading | None:
        """See ``CallReader``."""
        end = self._span.feed(text)
        if end is None:
            self._text.append(text)
            return None
        call = None if self._span.is_broken else decode_call("".join((*self._text, text[:end])), self._known)
        return Reading(None if call is None else (call,), len(text) - end)


# Qwen2.5-VL's and Qwen3-VL's templates ask for <tool_call>{"name": "f", "arguments": {...}}</tool_call>, with line
# breaks inside, once for each call. The tags say that it is a call, whatever its name.
HERMES = CallFormat(
    openers=("<tool_call>",), bare="", closers=("</tool_call>",), separators="", reader=lambda _tools: _Reader(None)
)

# Llama 3.1 to 3.3: the answer is {"name": "f", "parameters": {...}} and nothing else; several are parted by
# semicolons. An object that names none of the request's tools is just an answer in JSON.
LLAMA3_JSON = CallFormat(
    openers=("<|python_tag|>",), bare="{", closers=(), separators=";", reader=lambda tools: _Reader(tools.keys())
)

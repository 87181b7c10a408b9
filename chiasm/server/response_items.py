"""The items of ``/v1/responses``, in which reasoning and calls stand beside messages -> the messages of a chat."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from chiasm.engine.frontend.messages import (
    MAX_PARTS,
    parse_content,
    parse_message,
    unread_keys,
    unread_part_keys,
)
from chiasm.errors import UserError, refuse, shorten
from chiasm.schema.chat import ChatMessage
from chiasm.server.requests import MAX_MESSAGES

_ITEM_TYPES = ("message", "function_call", "function_call_output", "reasoning")
_READ = {
    "function_call": {"call_id", "name", "arguments"},
    "function_call_output": {"call_id", "output"},
    "reasoning": {"content", "summary", "encrypted_content"},
}
_WITHOUT_EFFECT = {"id", "type", "status"}


def as_items(given: object) -> list[Any]:
    """The items of ``input``, of which a text is one.

    Raises:
        UserError: if it is neither, or there are none or too many.
    """
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        refuse("input", given, "a string or a list of items that is not empty")
    if len(given) > MAX_MESSAGES:
        refuse("input", f"{len(given)} items", f"at most {MAX_MESSAGES} items")
    return given


def parse_items(items: Sequence[object], param: str) -> tuple[ChatMessage, ...]:
    """The conversation that some items are.

    What the assistant thought, said and called one after the other is one message, as chat templates know it.

    Args:
        items: as a client wrote them or got them.
        param: the field that holds them, for errors.

    Raises:
        UserError: naming the item and the part at fault.
    """
    num_parts = sum(map(_num_parts, items))
    if num_parts > MAX_PARTS:
        refuse(param, f"{num_parts} parts", f"at most {MAX_PARTS} content parts")
    messages: list[ChatMessage] = []
    turn = _Turn()
    for index, item in enumerate(items):
        where = f"{param}[{index}]"
        if not isinstance(item, Mapping):
            refuse(where, item, "an object with a type")
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind not in _ITEM_TYPES:
            _refuse_type(kind, f"{where}.type")
        if kind in ("message", "function_call_output") and item.get("role") != "assistant":
            messages += turn.end()
            messages.append(parse_message(item, where) if kind == "message" else _parse_output(item, where))
            continue
        if not turn.can_go_on_with(kind):
            messages += turn.end()
        turn.add(kind, item, where)
    return (*messages, *turn.end())


def unread_item_keys(items: Sequence[object]) -> set[str]:
    """What of some items nobody reads, as ``content.note`` where it is within a part."""
    found: set[str] = set()
    for item in items:
        if not isinstance(item, Mapping):
            continue
        if item.get("type") in _READ:
            own = {str(key) for key in item.keys() - _READ[item["type"]] - _WITHOUT_EFFECT}
            found |= own | {f"output.{key}" for key in unread_part_keys(item.get("output"))}
        else:
            found |= unread_keys([item])
    return found


def _num_parts(item: object) -> int:
    lists = [item.get(key) for key in ("content", "output")] if isinstance(item, Mapping) else []
    return sum(len(parts) for parts in lists if isinstance(parts, list))


@dataclass
class _Turn:
    """What the assistant has done since somebody else had their say."""

    param: str = ""
    reasoning: list[str] = field(default_factory=list)
    content: Any = None
    calls: list[dict[str, Any]] = field(default_factory=list)

    def can_go_on_with(self, kind: str) -> bool:
        """Whether an item of this kind belongs to the same message; its order is thinking, saying, calling."""
        if kind == "function_call":
            return True
        return not self.calls and self.content is None

    def add(self, kind: str, item: Mapping[str, Any], param: str) -> None:
        """Take an item."""
        self.param = self.param or param
        if kind == "reasoning":
            self.reasoning += _reasoning_texts(item.get("content"), f"{param}.content")
        elif kind == "message":
            parse_content(item.get("content"), f"{param}.content")  # errors name the item, not the turn
            self.content = item["content"]
            self.param = param
        else:
            self.calls.append(_parse_call(item, param))

    def end(self) -> list[ChatMessage]:
        """The message, if there is anything in it; the next turn begins."""
        message: dict[str, Any] = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning"] = "\n".join(self.reasoning)
        if self.calls:
            message["tool_calls"] = self.calls
        is_empty = self.content is None and len(message) == 2
        param = self.param
        self.param, self.reasoning, self.content, self.calls = "", [], None, []
        return [] if is_empty else [parse_message(message, param)]


def _reasoning_texts(content: object, param: str) -> list[str]:
    """What was thought; an item without it (only a summary, or encrypted) says nothing."""
    if content is None:
        return []
    if not isinstance(content, list):
        refuse(param, content, "a list of parts with a text")
    texts = []
    for index, part in enumerate(content):
        text = part.get("text") if isinstance(part, Mapping) else None
        if not isinstance(text, str):
            refuse(f"{param}[{index}].text", text, "a string")
        texts.append(text)
    return texts


def _parse_call(item: Mapping[str, Any], param: str) -> dict[str, Any]:
    for key in ("call_id", "name", "arguments"):
        if not isinstance(item.get(key), str):
            refuse(f"{param}.{key}", item.get(key), "a string")
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}


def _parse_output(item: Mapping[str, Any], param: str) -> ChatMessage:
    """What a tool has answered, which may be pictures."""
    call_id = item.get("call_id")
    if not isinstance(call_id, str):
        refuse(f"{param}.call_id", call_id, "a string")
    where = f"{param}.output"
    return ChatMessage("tool", parse_content(item.get("output"), where), param, {"tool_call_id": call_id}, where)


def _refuse_type(kind: object, param: str) -> NoReturn:
    known = ", ".join(_ITEM_TYPES)
    raise UserError(f"{param} {shorten(kind)} is not served by this version; served: {known}.", param=param)

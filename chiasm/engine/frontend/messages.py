"""A conversation in the spellings that clients use -> the one that the engine takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from chiasm.engine.frontend.media_parts import MEDIA_FIELDS, parse_media_part, unread_media_keys
from chiasm.errors import UserError, refuse, refuse_unserved, shorten
from chiasm.schema.chat import ChatMessage, ContentPart, TextPart

MAX_PARTS = 4096  # in all messages of a request

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TEXT_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
_THINKING = "thinking"  # of an assistant's message: reasoning, as some templates and clients write it
_PART_TYPES = (*_TEXT_FIELDS, *MEDIA_FIELDS, _THINKING)
_EXTRA = ("name", "tool_calls", "tool_call_id", "reasoning")
_UNSERVED = ("audio", "function_call")  # of a message
_READ = ("role", "content", *_EXTRA, "reasoning_content", "refusal", *_UNSERVED)
# What answers and other servers' clients put into messages and parts, and what says nothing to a model.
_WITHOUT_EFFECT = frozenset(
    ("annotations", "cache_control", "citations", "closed", "id", "logprobs", "phase", "signature", "status", "type")
)


def parse_messages(messages: Sequence[object]) -> tuple[ChatMessage, ...]:
    """The conversation of a chat request, from a client or from a script.

    Raises:
        UserError: naming the message and the part at fault.
    """
    num_parts = sum(len(m["content"]) for m in messages if isinstance(m, dict) and isinstance(m.get("content"), list))
    if num_parts > MAX_PARTS:
        refuse("messages", f"{num_parts} parts", f"at most {MAX_PARTS} content parts")
    return tuple(parse_message(message, f"messages[{i}]") for i, message in enumerate(messages))


def parse_message(message: object, param: str) -> ChatMessage:
    """One message.

    Args:
        message: as the client wrote it.
        param: the field of the request that holds it, for errors.

    Raises:
        UserError: naming the part at fault.
    """
    if not isinstance(message, dict):
        refuse(param, message, "an object with role and content")
    role = message.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        refuse(f"{param}.role", role, f"one of {', '.join(_ROLES)}")
    for key in _UNSERVED:
        if message.get(key) is not None:
            refuse_unserved(f"{param}.{key}", message[key])
    extra = {key: message[key] for key in _EXTRA if message.get(key) is not None}
    if "tool_calls" in extra:
        extra["tool_calls"] = _parse_tool_calls(extra["tool_calls"], f"{param}.tool_calls")
    if "reasoning" not in extra and isinstance(message.get("reasoning_content"), str):
        extra["reasoning"] = message["reasoning_content"]
    content = message.get("content")
    if content is None and role == "assistant":
        content = message.get("refusal")  # in its place, as answers have it
    if role == "assistant" and isinstance(content, list):
        content, thoughts = _part_thinking(content, f"{param}.content")
        if thoughts:
            extra.setdefault("reasoning", "\n".join(thoughts))
    if content is None and role == "assistant":
        return ChatMessage(role, (), param, extra)  # it only called tools
    return ChatMessage(_ROLES[role], parse_content(content, f"{param}.content"), param, extra)


def unread_keys(messages: Sequence[object]) -> set[str]:
    """What of some messages nobody reads, as ``content.image_url.note`` where it is within a part."""
    found: set[str] = set()
    for message in messages:
        if isinstance(message, Mapping):
            found |= {str(key) for key in message.keys() - _WITHOUT_EFFECT if key not in _READ}
            found |= {f"content.{key}" for key in unread_part_keys(message.get("content"))}
    return found


def unread_part_keys(content: object) -> set[str]:
    """What of the parts of a message nobody reads."""
    found: set[str] = set()
    for part in content if isinstance(content, list) else ():
        if not isinstance(part, Mapping):
            continue
        kind = part.get("type") or _guess_type(part)
        if isinstance(kind, str) and kind in MEDIA_FIELDS:
            found |= unread_media_keys(part, kind)
        else:
            found |= {
                str(key) for key in part.keys() - _WITHOUT_EFFECT if key not in (*_TEXT_FIELDS.values(), _THINKING)
            }
    return found


def parse_content(content: object, param: str) -> tuple[ContentPart, ...]:
    """The parts of a message; a string is one.

    Args:
        content: as the client wrote it.
        param: the field of the request that holds it, for errors.

    Raises:
        UserError: naming the part at fault.
    """
    if isinstance(content, str):
        return (TextPart(content),)
    if not isinstance(content, list):
        refuse(param, content, "a string or a list of parts")
    return tuple(_parse_part(part, f"{param}[{i}]") for i, part in enumerate(content))


def _parse_part(part: object, param: str) -> ContentPart:
    if isinstance(part, str):
        return TextPart(part)
    if not isinstance(part, dict):
        refuse(param, part, "a string or an object with a type")
    kind = part.get("type") or _guess_type(part)
    if not isinstance(kind, str) or kind not in _PART_TYPES:
        _refuse_type(kind, f"{param}.type")
    if kind == _THINKING:
        refuse(f"{param}.type", kind, "of another type but in an assistant's message")
    if kind in MEDIA_FIELDS:
        return parse_media_part(part, kind, param)
    field = _TEXT_FIELDS[kind]
    text = part.get(field)
    if not isinstance(text, str):
        refuse(f"{param}.{field}", text, "a string")
    return TextPart(text)


def _part_thinking(parts: list[object], param: str) -> tuple[list[object], list[str]]:
    """The parts of an assistant's message that are said, and the texts of those that are reasoning."""
    said: list[object] = []
    thoughts: list[str] = []
    for index, part in enumerate(parts):
        if not isinstance(part, dict) or part.get("type") != _THINKING:
            said.append(part)
            continue
        text = part.get(_THINKING)
        texts = [entry.get("text") for entry in text if isinstance(entry, dict)] if isinstance(text, list) else [text]
        if not all(isinstance(one, str) for one in texts):
            refuse(f"{param}[{index}].{_THINKING}", text, "a string or a list of parts with a text")
        thoughts += [one for one in texts if isinstance(one, str)]
    return said, thoughts


def _parse_tool_calls(calls: object, param: str) -> list[dict[str, Any]]:
    """Tool calls of an earlier answer: their arguments travel as JSON text, templates read them as objects."""
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        refuse(param, calls, "a list of tool calls")
    return [{**call, "function": _parse_function(call["function"])} if "function" in call else call for call in calls]


def _parse_function(function: object) -> object:
    if not isinstance(function, dict):
        return function
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = msgspec.json.decode(arguments) if arguments.strip() else None
        except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
            return function  # what a model wrote need not be JSON; templates get it as it is
    if arguments is None:
        arguments = {}  # a call without arguments
    return {**function, "arguments": arguments} if isinstance(arguments, dict) else function


def _guess_type(part: Mapping[str, Any]) -> str | None:
    """The type of a part that names none: some clients leave it to the one field there is."""
    known = ("text", "image_url", "image", "video_url", "video", "audio_url")
    found = [kind for kind in known if kind in part]
    return found[0] if len(found) == 1 else None


def _refuse_type(kind: object, param: str) -> NoReturn:
    known = ", ".join(_PART_TYPES)
    raise UserError(f"{param} {shorten(kind)} is not served by this version; served: {known}.", param=param)

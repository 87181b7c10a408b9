"""A conversation in the spellings that clients use -> the one that the engine takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from chiasm.errors import UserError, refuse, shorten
from chiasm.schema.chat import ChatMessage, ContentPart, ImagePart, TextPart, VideoPart

MAX_PARTS = 4096  # in all messages of a request

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
_TEXT_FIELDS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}
# "image", "image_pil" and "video" are the spellings of scripts, where the field may hold more than a URL.
_IMAGE_FIELDS = {"image_url": "image_url", "input_image": "image_url", "image": "image", "image_pil": "image_pil"}
_VIDEO_FIELDS = {"video_url": "video_url", "video": "video"}
_MEDIA_FIELDS = {**_IMAGE_FIELDS, **_VIDEO_FIELDS}
_THINKING = "thinking"  # of an assistant's message: reasoning, as some templates and clients write it
_PART_TYPES = (*_TEXT_FIELDS, *_MEDIA_FIELDS, _THINKING)
_EXTRA = ("name", "tool_calls", "tool_call_id", "reasoning")


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
    extra = {key: message[key] for key in _EXTRA if message.get(key) is not None}
    if "tool_calls" in extra:
        extra["tool_calls"] = _parse_tool_calls(extra["tool_calls"], f"{param}.tool_calls")
    if "reasoning" not in extra and isinstance(message.get("reasoning_content"), str):
        extra["reasoning"] = message["reasoning_content"]
    content = message.get("content")
    if role == "assistant" and isinstance(content, list):
        content, thoughts = _part_thinking(content, f"{param}.content")
        if thoughts:
            extra.setdefault("reasoning", "\n".join(thoughts))
    if content is None and role == "assistant":
        return ChatMessage(role, (), param, extra)  # it only called tools
    return ChatMessage(_ROLES[role], parse_content(content, f"{param}.content"), param, extra)


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
    if kind in _MEDIA_FIELDS:
        field = _MEDIA_FIELDS[kind]
        if kind in ("image", "video") and "url" in part:  # as transformers spells it
            field = "url"
        media = _parse_media(part.get(field), f"{param}.{field}")
        return VideoPart(*media) if kind in _VIDEO_FIELDS else ImagePart(*media)
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
    return next((kind for kind in known if kind in part), None)


def _parse_media(media: object, param: str) -> tuple[object, str]:
    """An item and its field; a ``detail`` beside it is a hint for other servers' prices and has no meaning here."""
    if isinstance(media, dict):
        media, param = media.get("url"), f"{param}.url"
    if media is None or (isinstance(media, str) and not media):
        refuse(param, media, "a URL: http(s) or data:")
    return media, param


def _refuse_type(kind: object, param: str) -> NoReturn:
    known = ", ".join(_PART_TYPES)
    raise UserError(f"{param} {shorten(kind)} is not served by this version; served: {known}.", param=param)

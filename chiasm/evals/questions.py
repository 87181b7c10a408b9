"""What lm-eval asks: its prompts as conversations with pictures, and its words for how to decode."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from chiasm.errors import UserError

_PLACEHOLDER = "<image>"

Message = dict[str, Any]


class Question(NamedTuple):
    """A prompt of lm-eval's.

    Attributes:
        text: as it is to be given to the model; empty where there is a conversation.
        messages: in OpenAI's form, with pictures as ``{"type": "image", "image": picture}``; empty for a plain text.
        is_open: whether the answer goes on with the last message.
    """

    text: str = ""
    messages: tuple[Message, ...] = ()
    is_open: bool = False


def pack_conversation(messages: Sequence[Message], *, is_open: bool) -> str:
    """A conversation as the text that lm-eval passes on as a prompt."""
    return json.dumps({"messages": messages, "is_open": is_open})


def read_question(context: str, pictures: Sequence[Any], max_images: int) -> Question:
    """What a prompt is.

    Args:
        context: of ``pack_conversation``, or a plain text. With pictures that is a user's message.
        pictures: that stand where the task has ``<image>``; those without a place of their own come first.
        max_images: further ones are left out.

    Raises:
        UserError: for more places than pictures.
    """
    try:
        packed = json.loads(context)
        messages, is_open = packed["messages"], packed["is_open"]
    except (ValueError, TypeError, KeyError):
        if not pictures:
            return Question(text=context)
        messages, is_open = [{"role": "user", "content": context}], False
    placed = _with_pictures(messages, pictures, max_images) if pictures else messages
    return Question(messages=tuple(placed), is_open=is_open)


def _with_pictures(messages: Sequence[Message], pictures: Sequence[Any], most: int) -> list[Message]:
    num_places = sum(message["content"].count(_PLACEHOLDER) for message in messages)
    if num_places > len(pictures):
        # So it is with examples in front of the question, whose pictures lm-eval does not give.
        raise UserError(
            f"A prompt has {num_places} {_PLACEHOLDER} and {len(pictures)} pictures: which is where?", param="tasks"
        )
    left = list(pictures[:most])
    first = [_picture(left.pop(0)) for _ in range(max(0, len(left) - num_places))]
    made = []
    for message in messages:
        parts = first if message["role"] == "user" else []
        first = [] if parts else first
        for index, text in enumerate(message["content"].split(_PLACEHOLDER)):
            if index and left:
                parts = [*parts, _picture(left.pop(0))]
            if text.strip():
                parts = [*parts, {"type": "text", "text": text}]
        made.append({**message, "content": parts})
    return made


def _picture(picture: Any) -> dict[str, Any]:
    return {"type": "image", "image": picture}


def decoding_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of ``SamplingParams``, or of a request.

    Args:
        settings: a task's, in the form of lm-eval's ``normalize_gen_kwargs``. Without a name of lm-eval's own they
            are passed on as they are.
    """
    passed = {name: value for name, value in settings.items() if name not in ("until", "do_sample", "max_gen_toks")}
    stop = [text for text in settings["until"] if text]
    fields = {**passed, "temperature": settings.get("temperature", 1.0 if settings["do_sample"] else 0.0)}
    return {**fields, "max_tokens": settings["max_gen_toks"], **({"stop": stop} if stop else {})}

"""A conversation and a chat template -> the prompt's text. Plain values go in, so that this can be done elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from chiasm.engine.frontend.chat_template import ChatTemplate
from chiasm.errors import UserError

# Where the text to go on with ends: a noncharacter, and a space by which a template that trims gives itself away.
END = "\ufdd1"
_END_TAG = f"{END} "


class SealedMessage(msgspec.Struct, frozen=True):
    """A message in which nothing that a user wrote can become a special token; see ``literal_text``.

    Attributes:
        role: whose it is.
        parts: of its content, as templates read them.
        content_param: the field of the request that holds the content, for errors.
        extra: further fields that a template may read.
    """

    role: str
    parts: list[dict[str, str]]
    content_param: str
    extra: dict[str, Any]


class SealedConversation(msgspec.Struct, frozen=True):
    """What a template gets.

    Attributes:
        messages: the conversation.
        add_generation_prompt: whether the prompt ends with the head of an assistant's message.
        continue_final_message: whether it ends within the last message instead.
        kwargs: the request's ``chat_template_kwargs``.
        tools: that the model may call, in OpenAI's form.
    """

    messages: list[SealedMessage]
    add_generation_prompt: bool
    continue_final_message: bool
    kwargs: dict[str, Any]
    tools: list[Any]


def render_conversation(template: ChatTemplate, conversation: SealedConversation) -> str:
    """The text of a prompt, for ``PromptBuilder.tokenize``.

    Raises:
        UserError: if the template refuses, takes no tools, or reads no media.
    """
    if conversation.tools and not template.reads_tools:
        raise UserError("this model's chat template takes no tools; --chat-template can.", param="tools")
    messages = [
        {**message.extra, "role": message.role, "content": _content(message, template)}
        for message in conversation.messages
    ]
    if conversation.continue_final_message:
        _tag_end(messages)
    text = template.render(
        messages,
        add_generation_prompt=conversation.add_generation_prompt and not conversation.continue_final_message,
        kwargs=conversation.kwargs,
        tools=conversation.tools,
    )
    return _cut_at_end(text) if conversation.continue_final_message else text


def _content(message: SealedMessage, template: ChatTemplate) -> str | list[dict[str, str]]:
    """One text alone is a string, anything else a list of parts, as far as the template reads both forms."""
    parts = [dict(part) for part in message.parts]
    media = [part["type"] for part in parts if part["type"] != "text"]
    if media:
        if not template.reads_parts:
            param = message.content_param
            raise UserError(f"{param} has {media[0]}s, but the chat template reads text only.", param=param)
        return parts
    if template.reads_parts and (len(parts) > 1 or not template.reads_strings):
        return parts
    return "\n".join(part["text"] for part in parts)


def _tag_end(messages: Sequence[dict[str, Any]]) -> None:
    """Mark the end of the last message's text."""
    content = messages[-1]["content"] if messages else ""
    if isinstance(content, str) and content.strip():
        messages[-1]["content"] = content + _END_TAG
    elif isinstance(content, list) and content and content[-1].get("text", "").strip():
        content[-1]["text"] += _END_TAG
    else:
        message = "continue_final_message needs a last message that ends with text."
        raise UserError(message, param="continue_final_message")


def _cut_at_end(text: str) -> str:
    """The prompt up to the mark, so that the model goes on with the message."""
    position = text.rfind(END)
    if position < 0:
        message = "continue_final_message does not work here: the chat template leaves the last message's text out."
        raise UserError(message, param="continue_final_message")
    kept = text[:position].replace(_END_TAG, "")
    return kept if text.startswith(_END_TAG, position) else kept.rstrip()

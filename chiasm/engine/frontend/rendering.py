"""A conversation and a chat template -> the prompt's text. Plain values go in, so that this can be done elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from chiasm.engine.frontend.chat_template import ChatTemplate
from chiasm.engine.frontend.template_probe import ContentForm
from chiasm.errors import UserError

# Where the text to go on with ends: a noncharacter, and a space by which a template that trims gives itself away.
END = "\ufdd1"
_END_TAG = f"{END} "


class SealedMessage(msgspec.Struct, frozen=True):
    """A message in which nothing that a user wrote can become a special token; see ``literal_text``.

    Attributes:
        role: whose it is.
        parts: of its content, as templates read them.
        param: the field of the request that holds the message, for errors.
        content_param: the field of the request that holds the content, for errors.
        extra: further fields that a template may read.
    """

    role: str
    parts: list[dict[str, str]]
    param: str
    content_param: str
    extra: dict[str, Any]

    @property
    def media(self) -> list[str]:
        """The kinds of its parts that are no text."""
        return [part["type"] for part in self.parts if part["type"] != "text"]

    @property
    def is_tool_turn(self) -> bool:
        """Whether it calls tools, or is the result of one."""
        return self.role == "tool" or bool(self.extra.get("tool_calls"))


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
        UserError: if the template refuses, or leaves out what it was given: tools, calls of tools, media.
    """
    _check_tools(template, conversation)
    messages = [
        {**message.extra, "role": message.role, "content": content}
        for message, content in zip(conversation.messages, _contents(template, conversation), strict=True)
    ]
    if conversation.continue_final_message:
        _tag_end(messages)
    text = template.render(
        messages,
        add_generation_prompt=conversation.add_generation_prompt and not conversation.continue_final_message,
        kwargs=conversation.kwargs,
        tools=conversation.tools,
    )
    _check_tools_shown(text, conversation.tools)
    return _cut_at_end(text) if conversation.continue_final_message else text


_ANOTHER = "--chat-template gives the server one that does"


def _check_tools(template: ChatTemplate, conversation: SealedConversation) -> None:
    """Refuse tools, and turns in which some were called, where nothing of them would reach the model."""
    if conversation.tools and not template.reads_tools:
        raise UserError(f"this model's chat template takes no tools; {_ANOTHER}.", param="tools")
    turns = [message for message in conversation.messages if message.is_tool_turn]
    if turns and not template.probe.keeps_tool_turns(bool(conversation.tools)):
        found = "is a result of a tool" if turns[0].role == "tool" else "has calls of tools"
        reason = "doesn't show those" if template.reads_tools else "takes no tools"
        raise UserError(
            f"{turns[0].param} {found}, but this model's chat template {reason}; {_ANOTHER}.", param=turns[0].param
        )


def _check_tools_shown(text: str, tools: Sequence[Any]) -> None:
    if tools and not any(name in text for name in _tool_names(tools)):
        raise UserError(
            "the chat template leaves the tools out of this conversation; some templates show them beside a system "
            "message only, or not beside images.",
            param="tools",
        )


def _tool_names(tools: Sequence[Any]) -> list[str]:
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, dict)]
    return [str(function.get("name")) for function in functions if isinstance(function, dict)]


def _contents(template: ChatTemplate, conversation: SealedConversation) -> Iterator[str | list[dict[str, str]]]:
    """The content of each message in a form that the template reads where it stands."""
    messages = conversation.messages
    first = 1 if messages and messages[0].role == "system" else 0
    for index, message in enumerate(messages):
        form = template.probe.form(message.role)
        is_list = form.parts and (bool(message.media) or len(message.parts) > 1)
        if is_list and index == first and message.role == "user" and conversation.tools:
            form = _form_beside_tools(template, message, conversation.kwargs, has_system=first == 1)
        yield _content(message, form, template.probe.separator)


def _form_beside_tools(
    template: ChatTemplate, message: SealedMessage, kwargs: Mapping[str, Any], *, has_system: bool
) -> ContentForm:
    """Of the first message, into which some templates write the tools: they make one text of it.

    Raises:
        UserError: if it has media that would be lost.
    """
    probe = template.probe
    if probe.keeps_first_parts(bool(message.media), kwargs, has_system=has_system):
        return probe.form(message.role)
    if message.media:
        param = message.content_param
        way = probe.way_to_keep_first_media(kwargs, has_system=has_system)
        raise UserError(
            f"{param} has {message.media[0]}s, which the chat template leaves out beside tools in a first message; "
            f"{way}.",
            param=param,
        )
    return ContentForm(strings=True, parts=False)


def _content(message: SealedMessage, form: ContentForm, separator: str) -> str | list[dict[str, str]]:
    """One text alone is a string, anything else a list of parts, as far as the template reads both forms."""
    parts = [dict(part) for part in message.parts]
    if message.media and not form.parts:
        param = message.content_param
        where = "" if message.role == "user" else f" in messages of the role {message.role}"
        raise UserError(
            f"{param} has {message.media[0]}s, but the chat template reads text only{where}.", param=param
        )
    if message.media or (form.parts and (len(parts) > 1 or not form.strings)):
        return parts
    return separator.join(part["text"] for part in parts)


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

"""What a chat template reads, found out by trying: for what it doesn't read it prints nothing, or Python's notation.

The conversations that it is tried with are short, and it is tried only when a conversation needs to know.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, Protocol

from chiasm.errors import UserError

_TEXTS = ("chiasm-probe-one", "chiasm-probe-two")
_PARTS = [{"type": "text", "text": text} for text in _TEXTS]
_NAME, _VALUE = "chiasm_probe", "chiasm-probe-value"
_CALL = {"id": "chiasm", "type": "function", "function": {"name": _NAME, "arguments": {"key": _VALUE}}}
_TOOL = {
    "type": "function",
    "function": {"name": _NAME, "description": "", "parameters": {"type": "object", "properties": {}}},
}
_IN_USER_MESSAGE = "tools_in_user_message"  # Llama's name for where tools are shown

Message = dict[str, Any]


class Render(Protocol):
    """``ChatTemplate.render``."""

    def __call__(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The prompt of a conversation; raises UserError if there is none."""


class ContentForm(NamedTuple):
    """In which forms a message's content may be.

    Attributes:
        strings: a string.
        parts: a list of parts.
    """

    strings: bool
    parts: bool


class TemplateProbe:
    """Tries a template.

    Args:
        render: of the template.
        source: its text.
    """

    def __init__(self, render: Render, source: str) -> None:
        self._render = render
        self._source = source
        self.form = lru_cache(maxsize=None)(self._form)
        self.keeps_tool_turns = lru_cache(maxsize=None)(self._keeps_tool_turns)

    def _form(self, role: str) -> ContentForm:
        """The forms that the template reads in messages of a role; if it shows neither, those of a user's."""
        strings = _TEXTS[0] in self._try(self._conversation(role, _TEXTS[0]))
        parts = _shows_parts(self._try(self._conversation(role, _PARTS)))
        if strings or parts:
            return ContentForm(strings, parts)
        return ContentForm(strings=True, parts=True) if role == "user" else self.form("user")

    def _keeps_tool_turns(self, has_tools: bool) -> bool:
        """Whether calls of earlier answers and their results are shown, where the request has tools or none."""
        shown = self._try(self._conversation("tool", _TEXTS[0]), tools=[_TOOL] if has_tools else [])
        # A template that refuses such a conversation says itself why.
        return not shown or all(text in shown for text in (_NAME, _VALUE, _TEXTS[0]))

    @cached_property
    def separator(self) -> str:
        """What to put between texts that the template reads as one string only.

        It is what the template itself puts between a user's texts, if that is nothing or white space, or else a line
        break.
        """
        shown = self._try(self._conversation("user", _PARTS))
        found = re.search(rf"{_TEXTS[0]}(\s*){_TEXTS[1]}", shown)
        return found[1] if found else "\n"

    def keeps_first_parts(self, has_media: bool, kwargs: Mapping[str, Any], *, has_system: bool) -> bool:
        """Whether a first message of parts stays one beside tools.

        Args:
            has_media: whether one of the parts is an image or a video.
            kwargs: of the request.
            has_system: whether a system message stands before it.
        """
        shown = self._beside_tools(has_media, kwargs, has_system)
        return not shown or _shows_parts(shown)

    def way_to_keep_first_media(self, kwargs: Mapping[str, Any], *, has_system: bool) -> str:
        """What to tell a user whose first message has media that the template drops beside tools."""
        if _IN_USER_MESSAGE not in self._source:
            return "have them in a later message, or give the server another template with --chat-template"
        changed = {**kwargs, _IN_USER_MESSAGE: False}
        setting = f'chat_template_kwargs: {{"{_IN_USER_MESSAGE}": false}}'
        if _shows_both(self._beside_tools(True, changed, has_system)):
            return f"{setting} keeps them"
        if _shows_both(self._beside_tools(True, changed, True)):
            return f"{setting} and a system message keep them"
        return f"with {setting} it leaves out the tools instead, so have them in a later message"

    def _beside_tools(self, has_media: bool, kwargs: Mapping[str, Any], has_system: bool) -> str:
        parts = [*([{"type": "image"}] if has_media else []), *_PARTS]
        system = [{"role": "system", "content": "x"}] if has_system else []
        return self._try([*system, {"role": "user", "content": parts}], tools=[_TOOL], kwargs=kwargs)

    def _conversation(self, role: str, content: Any) -> list[Message]:
        """One with a message of the role, as templates expect it there."""
        message = {"role": role, "content": content}
        if role == "user":
            return [message]
        user = {"role": "user", "content": "x" if self.form("user").strings else [{"type": "text", "text": "x"}]}
        if role == "system":
            return [message, user]
        if role == "assistant":
            return [user, message, user]
        return [
            user,
            {"role": "assistant", "content": "", "tool_calls": [_CALL]},
            {**message, "tool_call_id": "chiasm"},
        ]

    def _try(
        self,
        messages: list[Message],
        tools: Sequence[Mapping[str, Any]] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt; nothing if the template refuses."""
        try:
            return self._render(messages, add_generation_prompt=False, kwargs=kwargs or {}, tools=tools)
        except UserError:
            return ""


def _shows_both(shown: str) -> bool:
    return _NAME in shown and _shows_parts(shown)


def _shows_parts(shown: str) -> bool:
    return all(text in shown and f"'{text}'" not in shown and f'"{text}"' not in shown for text in _TEXTS)

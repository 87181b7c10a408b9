"""Conversations to prompts: a checkpoint's chat template in a sandbox.

Templates are Jinja programs that come with a checkpoint. They get the names that Hugging Face's own renderer gives
them (https://huggingface.co/docs/transformers/chat_templating_writing) and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from chiasm.config.checkpoint import read_json
from chiasm.errors import UserError, refuse

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "raise_exception", "strftime_now", "tokenize"})


class ChatTemplate:
    """A compiled template.

    Args:
        source: the Jinja text.
        special_tokens: names that a template may print (``bos_token``, ``eos_token``, ...).

    Raises:
        UserError: if it does not compile.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols], autoescape=False
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda form: datetime.now().astimezone().strftime(form)
        self._special_tokens = dict(special_tokens)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise UserError(f"the chat template does not compile: {error}", param="chat_template") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool, kwargs: Mapping[str, Any]
    ) -> str:
        """The prompt of a conversation.

        Args:
            messages: in the form that templates read: ``role`` and ``content``, a string or a list of parts.
            add_generation_prompt: whether the prompt ends with the head of an assistant's message.
            kwargs: the request's ``chat_template_kwargs``.

        Raises:
            UserError: if the template refuses the conversation or fails on it, or a key of kwargs is reserved.
        """
        for key in kwargs:
            if key in _RESERVED:
                refuse("chat_template_kwargs", key, f"without the reserved keys {', '.join(sorted(_RESERVED))}")
        names = {**self._special_tokens, **kwargs}
        try:
            return self._template.render(messages=messages, add_generation_prompt=add_generation_prompt, **names)
        except jinja2.TemplateError as error:
            raise UserError(f"the chat template refuses these messages: {error}", param="messages") from error
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
            message = f"the chat template fails on these messages ({type(error).__name__})."
            raise UserError(message, param="messages") from error


def load_chat_template(folder: Path, override: str | None) -> ChatTemplate | None:
    """A checkpoint's template, or the one that the server was given: a file or the text itself.

    Returns:
        None if there is neither; such a checkpoint takes completions only.

    Raises:
        UserError: if it does not compile.
    """
    tokenizer_config = read_json(folder, "tokenizer_config.json") or {}
    source = _read_override(override) if override else _find_source(folder, tokenizer_config)
    return None if source is None else ChatTemplate(source, _special_tokens(tokenizer_config))


def _read_override(override: str) -> str:
    if "{" in override or "\n" in override:
        return override
    path = Path(override)
    if not path.is_file():
        refuse("chat_template", override, "a file, or a template's text")
    return path.read_text(encoding="utf-8")


def _find_source(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """Newest form first: a file of its own, the processor's JSON file, the tokenizer's settings."""
    jinja_file = folder / "chat_template.jinja"
    if jinja_file.is_file():
        return jinja_file.read_text(encoding="utf-8")
    for settings in (read_json(folder, "chat_template.json") or {}, tokenizer_config):
        source = settings.get("chat_template")
        if isinstance(source, list):  # named templates
            source = {entry.get("name"): entry.get("template") for entry in source}.get("default")
        if isinstance(source, str):
            return source
    return None


def _special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    tokens = {}
    for name, value in tokenizer_config.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens[name] = text
    return tokens


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Unlike Jinja's own filter, which escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)

"""Conversations to prompts: a checkpoint's chat template in a sandbox.

Templates are Jinja programs that come with a checkpoint. They get the names and tags that Hugging Face's own renderer
gives them (https://huggingface.co/docs/transformers/chat_templating_writing) and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from chiasm.config.checkpoint import read_json
from chiasm.engine.frontend.template_probe import TemplateProbe
from chiasm.errors import UserError, refuse

# Names with a meaning of their own, here or for Hugging Face's renderer.
_RESERVED = frozenset(
    {"messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt",
     "continue_final_message", "tokenize", "return_dict", "raise_exception", "strftime_now"}
)  # fmt: skip
_MAX_MESSAGE = 300  # characters of what a template says when it refuses


class ChatTemplate:
    """A compiled template.

    Args:
        source: the Jinja text.
        special_tokens: names that a template may print (``bos_token``, ``eos_token``, ...).

    Attributes:
        source: the Jinja text.
        reads_tools: whether it shows the model what tools there are.
        probe: finds out what else it reads.

    Raises:
        UserError: if it does not compile.
    """

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        self.source = source
        self._special_tokens = dict(special_tokens)
        try:
            environment = _environment()
            self._template = environment.from_string(source)
            self.reads_tools = "tools" in meta.find_undeclared_variables(environment.parse(source))
        except (jinja2.TemplateError, RecursionError) as error:
            raise UserError(f"the chat template does not compile: {error}", param="chat_template") from error
        self.probe = TemplateProbe(self.render, source)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """The prompt of a conversation.

        Args:
            messages: in the form that templates read: ``role`` and ``content``, a string or a list of parts.
            add_generation_prompt: whether the prompt ends with the head of an assistant's message.
            kwargs: the request's ``chat_template_kwargs``.
            tools: that the model may call, in OpenAI's form.

        Raises:
            UserError: if the template refuses the conversation or fails on it, or a key of kwargs is reserved.
        """
        for key in kwargs:
            if key in _RESERVED:
                refuse("chat_template_kwargs", key, f"without the reserved keys {', '.join(sorted(_RESERVED))}")
        names = {
            "tools": tools or None,
            "documents": None,
            **self._special_tokens,
            **kwargs,
            "messages": messages,
            "add_generation_prompt": add_generation_prompt,
        }
        try:
            return self._template.render(names)
        except jinja2.TemplateError as error:
            reason = "".join(filter(str.isprintable, str(error)[:_MAX_MESSAGE]))
            raise UserError(f"the chat template refuses these messages: {reason}", param="messages") from error
        except Exception as error:  # a template is a foreign program: whatever it raises is about its input
            message = f"the chat template fails on these messages ({type(error).__name__})."
            raise UserError(message, param="messages") from error


def load_chat_template(folder: Path, override: str | None) -> ChatTemplate | None:
    """A checkpoint's template, or the one that the server was given: a file or the text itself.

    Returns:
        None if there is neither; such a checkpoint takes completions only.

    Raises:
        UserError: if it can't be read or does not compile.
    """
    tokenizer_config = read_json(folder, "tokenizer_config.json") or {}
    source = _read_override(override) if override else _find_source(folder, tokenizer_config)
    return None if source is None else ChatTemplate(source, special_tokens(folder))


def _read_override(override: str) -> str:
    if "{" in override or "\n" in override:
        return override
    return _read(Path(override), override)


def _read(path: Path, shown: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(
            f"chat_template must be a readable file or a template's text, got {shown[:80]!r}.", param="chat_template"
        ) from error


def _find_source(folder: Path, tokenizer_config: Mapping[str, Any]) -> str | None:
    """Newest form first: a file of its own, the processor's JSON file, the tokenizer's settings."""
    jinja_file = folder / "chat_template.jinja"
    if jinja_file.is_file():
        return _read(jinja_file, jinja_file.name)
    for settings in (read_json(folder, "chat_template.json") or {}, tokenizer_config):
        source = _default_of(settings.get("chat_template"))
        if source is not None:
            return source
    return None


def _default_of(source: object) -> str | None:
    """The template among several named ones that is for conversations without tools."""
    if isinstance(source, list):
        source = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, dict)}
    if isinstance(source, dict):
        source = source.get("default")
    return source if isinstance(source, str) else None


def special_tokens(folder: Path) -> dict[str, str]:
    """Named special tokens; checkpoints from before ``added_tokens_decoder`` may have them in a file of their own."""
    settings = dict(read_json(folder, "tokenizer_config.json") or {})
    if "added_tokens_decoder" not in settings:
        settings |= read_json(folder, "special_tokens_map.json") or {}
    tokens = {}
    for name, value in settings.items():
        if name.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                tokens[name] = text
    return tokens


class _GenerationTag(Extension):
    """``{% generation %}...{% endgeneration %}`` tells trainers what the model wrote; for a prompt it is a scope."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(Namespace):
    """Jinja's namespace, without the names that Jinja itself looks for on objects, such as ``__call__``."""

    def __setitem__(self, name: str, value: Any) -> None:
        _check_public(name)
        super().__setitem__(name, value)


def _namespace(*args: Any, **names: Any) -> Namespace:
    values = dict(*args, **names)
    for name in values:
        _check_public(name)
    return _Namespace(values)


def _check_public(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace can't hold {name!r}.")


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols], autoescape=False
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "namespace": _namespace,
        "raise_exception": _raise_exception,
        "strftime_now": lambda form: datetime.now().astimezone().strftime(form),
    }
    return environment


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Unlike Jinja's own filter, which escapes for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)

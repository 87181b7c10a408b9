"""``flags.md``: every command with its arguments and options, in the words of the settings that they set."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import typer
from typer.core import TyperGroup

from apidocs.docstrings import attributes
from apidocs.markdown import code, meaning, page, sentence, table
from chiasm.cli.main import app
from chiasm.cli.options import EngineOptions, ServerOptions
from chiasm.config.engine import EngineConfig, MediaConfig
from chiasm.config.server import ServerConfig

_INTRO = """Dashes and underscores both work; `--config FILE.yaml` holds the same names, and the command line wins. In
Python, `LLM(...)` takes the settings of the engine and of media under the same names with underscores, and values in
place of JSON. None stands for a flag that is not given."""
_MEDIA = frozenset(MediaConfig.__struct_fields__)
_ENGINE = frozenset(field.name for field in fields(EngineOptions))
_SERVER = frozenset(field.name for field in fields(ServerOptions))
_GROUPS = {"The engine": _ENGINE - _MEDIA, "Media": _MEDIA, "The server": _SERVER}
_SETTINGS = attributes(ServerConfig) | attributes(MediaConfig) | attributes(EngineConfig)


def flags_page() -> str:
    """The page."""
    [(path, serve), *others] = _commands(_root(), "chiasm")
    grouped = frozenset[str]().union(*_GROUPS.values())
    parts = [_INTRO, f"## {path}", sentence(serve.help)]
    parts.append(_table(serve, [parameter for parameter in serve.params if parameter.name not in grouped]))
    for group, names in _GROUPS.items():
        own = [parameter for parameter in serve.params if parameter.name in names]
        parts += [f"### {group}", _table(serve, own, _SETTINGS)]
    for path, command in others:
        shared = {parameter.name for parameter in command.params} >= _ENGINE
        own = [parameter for parameter in command.params if not (shared and parameter.name in _ENGINE)]
        parts += [f"## {path}", sentence(command.help), _table(command, own)]
        if shared:
            parts.append("Beside these it takes the options of [the engine](#the-engine) and of [media](#media).")
    return page("Commands and flags", *parts)


def _root() -> TyperGroup:
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    return root


def _commands(group: TyperGroup, path: str) -> Iterator[tuple[str, Any]]:
    """Every command of a group and of the groups in it, with all words that call it."""
    for name, command in group.commands.items():
        if isinstance(command, TyperGroup):
            yield from _commands(command, f"{path} {name}")
        else:
            yield f"{path} {name}", command


def _table(command: Any, parameters: Sequence[Any], settings: Mapping[str, str] = {}) -> str:
    context = typer.Context(command)
    return table(("flag", "default", "meaning"), [_row(context, parameter, settings) for parameter in parameters])


def _row(context: typer.Context, parameter: Any, settings: Mapping[str, str]) -> tuple[str, str, str]:
    is_option = parameter.opts[0].startswith("-")
    shown = parameter.get_help_record(context)[0].replace(" range>", ">") if is_option else parameter.metavar
    text = max(parameter.help, settings.get(parameter.name, "") if is_option else "", key=len)  # the fuller one
    if parameter.envvar:
        text += f" Also ``{parameter.envvar}`` in the environment."
    return code(shown), code(_default(parameter.default)), meaning(text)


def _default(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)

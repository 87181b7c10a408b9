"""``--config FILE.yaml``: options from a file, as defaults that the command line overrides."""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import Any

import typer
import yaml

from chiasm.errors import UserError


def use_config_file(context: typer.Context, path: Path | None) -> None:
    """Take the defaults of the command's options from a file. A callback of ``--config``, which is read first."""
    if path is None or context.resilient_parsing:
        return
    parameters = [parameter for parameter in context.command.params if parameter.name != "config"]
    repeatable = {parameter.name: parameter.multiple for parameter in parameters}
    aliases = {_underscored(name): parameter.name for parameter in parameters for name in parameter.opts}
    context.default_map = read_config_file(path, repeatable, aliases)


def read_config_file(path: Path, repeatable: dict[str, bool], aliases: dict[str, str]) -> dict[str, Any]:
    """The options in a file, by parameter.

    Args:
        path: of a YAML mapping; its keys are names of options, with ``-`` or ``_``.
        repeatable: the parameters there are, and whether each may be given several times.
        aliases: further names of parameters.

    Raises:
        UserError: if it can't be read, or has an unknown key.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise UserError(f"config file {path} can't be read: {_first_line(error)}", param="config") from error
    if not isinstance(content, dict):
        raise UserError(f"config file {path} must be a mapping of option names to values.", param="config")
    options = {}
    for key, value in content.items():
        name = _underscored(str(key))
        name = aliases.get(name, name)
        if name not in repeatable:
            raise UserError(
                f"config file {path} has an unknown key {key!r}{_hint(name, repeatable)}.", param="config"
            )
        options[name] = _as_argument(value, repeatable=repeatable[name])
    return options


def _underscored(name: str) -> str:
    return name.lstrip("-").replace("-", "_")


def _as_argument(value: object, *, repeatable: bool) -> object:
    """A value as the command line would give it: options that take JSON take it as text."""
    if isinstance(value, dict):
        return json.dumps(value)
    if repeatable and value is not None and not isinstance(value, list):
        return [value]
    return value


def _hint(name: str, known: dict[str, bool]) -> str:
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
    return f"; did you mean {near[0]!r}?" if near else ""


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return " ".join(str(error).split())[:200]

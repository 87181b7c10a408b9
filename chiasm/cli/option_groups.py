"""Commands that take their many options as a few dataclasses."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import field, fields, is_dataclass
from typing import Annotated, Any, get_type_hints

import typer

Command = Callable[..., int]

_OPTION = "option"  # the key of an option's description in its field's metadata


def option(default: object, text: str, *names: str, **settings: Any) -> Any:
    """A field of a dataclass that is an option of a command.

    Args:
        default: its value where it is not given.
        text: its help.
        names: how it is written; by default ``--`` and the field's name.
        settings: further arguments of ``typer.Option``.
    """
    return field(default=default, metadata={_OPTION: typer.Option(*names, help=text, **settings)})


def with_option_groups(command: Command) -> Command:
    """Let ``command`` have parameters that are dataclasses of options.

    Typer reads a command's options from its signature; the wrapper has one in which the dataclasses are spread out.
    """
    hints = get_type_hints(command, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if isinstance(kind, type) and is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(command).parameters.values():
        if parameter.name in groups:
            parameters += _spread(groups[parameter.name])
        else:
            kind = inspect.Parameter.KEYWORD_ONLY
            parameters.append(parameter.replace(annotation=hints[parameter.name], kind=kind))

    def run(**values: Any) -> int:
        grouped = {name: kind(**{f.name: values.pop(f.name) for f in fields(kind)}) for name, kind in groups.items()}
        return command(**values, **grouped)

    run.__name__, run.__doc__ = command.__name__, command.__doc__
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _spread(group: type) -> list[inspect.Parameter]:
    hints = get_type_hints(group)
    return [
        inspect.Parameter(
            f.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=f.default,
            annotation=Annotated[hints[f.name], f.metadata[_OPTION]],
        )
        for f in fields(group)
    ]

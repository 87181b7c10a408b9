"""Options that make no sense together."""

from __future__ import annotations

from collections.abc import Iterable

import typer

from chiasm.errors import UserError


def refuse_given(context: typer.Context, names: Iterable[str], rule: str) -> None:
    """Refuse options that would be passed over in silence.

    Args:
        context: of the command.
        names: of its parameters.
        rule: why they can't be given, after the option's name.

    Raises:
        UserError: naming the first one that is on the command line.
    """
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            given = name.replace("_", "-")
            raise UserError(f"{given} {rule}.", param=given)

"""The commands on the pages are ones that the command line takes."""

from __future__ import annotations

import pytest
import typer
from typer.core import TyperGroup

from chiasm.cli.main import app, join_dotted
from tests.docs.pasted import commands
from tests.docs.test_links import PAGES

FOUND = [(str(page), arguments) for page in PAGES for arguments in commands(page)]


def test_there_are_some_of_each_kind() -> None:
    assert {" ".join(arguments[:2]) for _, arguments in FOUND} >= {
        "bench serve", "bench modes", "bench compare", "eval chartqa", "eval mmmu",
    }  # fmt: skip


@pytest.mark.parametrize(("page", "arguments"), FOUND, ids=[f"{page}: {' '.join(line)}" for page, line in FOUND])
def test_command(page: str, arguments: list[str]) -> None:
    parse(arguments)


def test_a_flag_that_is_not_there_is_found() -> None:
    with pytest.raises(Exception, match="--nope"):
        parse(["bench", "serve", "--nope"])


def parse(arguments: list[str]) -> None:
    """Find the command that the arguments name, and have it read the rest of them."""
    command = typer.main.get_command(app)
    context = command.make_context("chiasm", join_dotted(arguments))
    while isinstance(command, TyperGroup):
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        assert command is not None
        context = command.make_context(name, rest, parent=context)

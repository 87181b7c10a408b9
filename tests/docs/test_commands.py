"""The commands on the pages are ones that the command line takes."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from chiasm.cli.main import app, join_dotted
from tests.docs.test_links import PAGES

_ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```$", re.M | re.S)
_START = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:\S*/)?chiasm (?=[a-z])")


def commands(page: Path) -> list[list[str]]:
    """The arguments of each command ``chiasm`` in the page's blocks of code."""
    text = "\n".join(_BLOCK.findall((_ROOT / page).read_text(encoding="utf-8"))).replace("\\\n", " ")
    lines = [_START.sub("", line) for line in text.splitlines() if _START.match(line)]
    return [_arguments(line) for line in lines]


def _arguments(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    ends = [index for index, word in enumerate(words) if word in {"&", "|", ">", "2>", "&&"}]
    return words[: min(ends, default=len(words))]


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

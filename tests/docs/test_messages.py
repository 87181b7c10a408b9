"""The messages that troubleshooting tells of are those of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]
_PAGE = (_ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
MESSAGES = [line for block in re.findall(r"^```\n(.*?)^```$", _PAGE, re.M | re.S) for line in block.splitlines()]
_OF_OTHERS = re.compile(
    r"No such option: .*|Invalid value for .*|Not Found|Expecting .*|Got: .*|Address already .*|Cannot assign .*"
)
"""What Typer, Starlette, the hub's client and the system say."""


def _patterns() -> Iterator[str]:
    """Every text in the code of some length as an expression: its own words as groups, with anything between them."""
    for file in (_ROOT / "chiasm").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            texts = [part.value if isinstance(part, ast.Constant) else "" for part in parts]
            if all(isinstance(text, str) for text in texts) and len("".join(texts)) >= 8:
                words = [word for text in texts for word in re.split("%[sd]", text) if word]
                yield ".*?".join(f"({re.escape(word)})" for word in words)


@pytest.fixture(scope="module")
def patterns() -> list[re.Pattern[str]]:
    return [re.compile(pattern) for pattern in set(_patterns())]


@pytest.mark.parametrize("message", [ours for message in MESSAGES if (ours := _OF_OTHERS.sub("", message))])
def test_message_is_of_the_code(patterns: list[re.Pattern[str]], message: str) -> None:
    """Some text of the code makes up a good part of it."""
    bounds = _said(re.compile(r"(\ must\ be\ ).*?(,\ got\ )"), message)  # the words of ``refuse``
    best = max((bounds | _said(pattern, message) for pattern in patterns), key=len)
    rest = "".join(character for index, character in enumerate(message) if index not in best)
    assert len(best) > 0.25 * len(message), rest


def _said(pattern: re.Pattern[str], message: str) -> set[int]:
    """The places in a message of a text's own words."""
    found = pattern.search(message)
    groups = range(1, pattern.groups + 1) if found else ()
    return {index for group in groups for index in range(*found.span(group))}

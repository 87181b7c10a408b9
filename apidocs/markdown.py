"""Pieces of Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NOTE = "<!-- Written by `make docs` from the code: change it there. -->"


def page(title: str, *parts: str) -> str:
    """A whole page."""
    return "\n\n".join([NOTE, f"# {title}", *(part for part in parts if part)]) + "\n"


def prose(text: str) -> str:
    """A docstring's text: its paragraphs, with code as Markdown marks it."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(sentence(" ".join(paragraph.split())) for paragraph in paragraphs)


def sentence(text: str) -> str:
    """The same for what is no paragraph."""
    return text.replace("``", "`")


def meaning(text: str) -> str:
    """What a cell of a table says: the entry of a docstring, which goes on where the name before it ends."""
    return sentence(text[:1].upper() + text[1:])


def code(text: str) -> str:
    """Text as code; nothing where there is none."""
    return f"`{text}`" if text else ""


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, without the columns that are empty in every row."""
    listed = [[cell.replace("|", r"\|").replace("\n", " ") for cell in row] for row in rows]
    kept = [column for column in range(len(heads)) if any(row[column] for row in listed)]
    lines = [[heads[column] for column in kept], ["---"] * len(kept)]
    lines += [[row[column] for column in kept] for row in listed]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def anchor(heading: str) -> str:
    """What a link to a heading of the same page ends with, as GitHub has it."""
    return "#" + re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")

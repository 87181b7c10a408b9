"""Docstrings taken apart: what they say first, and their sections (``Args``, ``Attributes``, ``Raises``, ...)."""

from __future__ import annotations

import inspect
import re
from typing import NamedTuple

_SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Yields):")
_ENTRY = re.compile(r"(\w+): (.*)")


class Docstring(NamedTuple):
    """A docstring's parts.

    Attributes:
        text: what stands before the sections; paragraphs are parted by empty lines.
        sections: of each section the entries, name and text; a text without names has the name "".
    """

    text: str
    sections: dict[str, dict[str, str]]

    def entries(self, section: str) -> dict[str, str]:
        """The entries of a section, which may be missing."""
        return self.sections.get(section, {})


def parse(text: str | None) -> Docstring:
    """Take a docstring in Google's style apart."""
    before: list[str] = []
    sections: dict[str, list[str]] = {}
    lines = before
    for line in inspect.cleandoc(text or "").splitlines():
        head = _SECTION.fullmatch(line)
        if head:
            lines = sections.setdefault(head[1], [])
            continue
        if line and not line.startswith(" "):  # what is not indented is no part of a section
            lines = before
        lines.append(line)
    return Docstring("\n".join(before).strip(), {name: _entries(lines) for name, lines in sections.items()})


def attributes(kind: type) -> dict[str, str]:
    """What the docstrings of a class and of those that it is derived from say of its attributes."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if "__doc__" in vars(base):
            found |= parse(base.__doc__).entries("Attributes")
    return found


def _entries(lines: list[str]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    name = ""
    for line in inspect.cleandoc("\n".join(["", *lines])).splitlines():
        entry = _ENTRY.fullmatch(line)
        if entry:
            name = entry[1]
            found[name] = [entry[2]]
        elif line:
            found.setdefault(name, []).append(line.strip())
    return {name: " ".join(texts) for name, texts in found.items()}

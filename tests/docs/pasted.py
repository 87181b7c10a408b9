"""The commands on the pages, as a user pastes them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_BENCHMARKS = Path("docs/benchmarks.md")
_BLOCK = re.compile(r"^```[^\n]*\n(.*?)^```$", re.M | re.S)
_START = re.compile(r"^(?:[A-Z_]+=\S+ )*(?:\S*/)?chiasm (?=[a-z])")


def commands(page: Path) -> list[list[str]]:
    """The arguments of each command ``chiasm`` in the page's blocks of code."""
    text = "\n".join(_BLOCK.findall((_ROOT / page).read_text(encoding="utf-8"))).replace("\\\n", " ")
    lines = [_START.sub("", line) for line in text.splitlines() if _START.match(line)]
    return [_arguments(line) for line in lines]


def pasted(line: str, stand_ins: Mapping[str, str | None], *more: str) -> list[str]:
    """The arguments of a command that stands on the page about benchmarks.

    Args:
        line: its beginning, without ``chiasm``, such as ``bench modes MODEL``.
        stand_ins: words of it and what is given in their place; None leaves a word out.
        more: further arguments; of options that it has as well, those behind count.
    """
    [found] = [words for words in commands(_BENCHMARKS) if " ".join(words).startswith(line)]
    given = [stand_ins.get(word, word) for word in found]
    return [*(word for word in given if word is not None), *more]


def _arguments(line: str) -> list[str]:
    words = shlex.split(line, comments=True)
    ends = [index for index, word in enumerate(words) if word in {"&", "|", ">", "2>", "&&"}]
    return words[: min(ends, default=len(words))]

"""The checkpoint that comes with the package, and a question that it can answer."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

BUILT_IN_NAME = "chart-reader"
BUILT_IN_FOLDER = Path(__file__).parents[1] / "assets" / BUILT_IN_NAME


class Example(NamedTuple):
    """A picture on disk and a question about it."""

    picture: Path
    question: str


BUILT_IN_EXAMPLE = Example(BUILT_IN_FOLDER / "examples" / "bars.png", "Which bar is the largest?")

"""White space in forced JSON: enough to write it readably, and never so much that an answer is nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# A space, or a line break and an indentation.
_PATTERN = r" |\n[ \t]{0,40}"


def spaced_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema that says so to llguidance, whatever it said before."""
    options = {"whitespace_flexible": True, "whitespace_pattern": _PATTERN}
    return {**schema, "x-guidance": options}

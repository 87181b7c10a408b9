"""The files of published checkpoints: they lie beside the checkout, or tests that need them are skipped."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest

PUBLISHED = Path(__file__).resolve().parents[3] / "shared" / "published"
needs_published = pytest.mark.skipif(
    not PUBLISHED.is_dir(), reason="the files of published checkpoints are not at hand (../shared/published)"
)


def read_published(*path: str) -> Any:
    """A JSON file of theirs."""
    return json.loads(PUBLISHED.joinpath(*path).read_text(encoding="utf-8"))


def published_tensors(name: str) -> dict[str, tuple[int, ...] | None]:
    """Every tensor of a checkpoint with its shape, or None where only names are known."""
    tensors = {}
    for entry in read_published("tensors.json")[name]:
        names = list(_spread(entry["name"]))
        assert len(names) == entry["count"]
        tensors |= dict.fromkeys(names, tuple(entry["shape"]) if "shape" in entry else None)
    return tensors


def _spread(name: str) -> list[str]:
    """``layers.0-2.mlp.0,2`` stands for all six."""
    parts = re.split(r"(\d+-\d+|\d+(?:,\d+)+)", name)
    return ["".join(choice) for choice in product(*map(_numbers, parts))]


def _numbers(part: str) -> list[str]:
    if re.fullmatch(r"\d+-\d+", part):
        first, last = map(int, part.split("-"))
        return [str(number) for number in range(first, last + 1)]
    return part.split(",") if re.fullmatch(r"\d+(?:,\d+)+", part) else [part]

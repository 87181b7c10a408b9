"""Shares of right answers, with how sure they are."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec


class Score(msgspec.Struct, frozen=True):
    """How many answers of one kind were right."""

    right: int
    asked: int

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return self.right / self.asked

    @property
    def standard_error(self) -> float:
        """Of the accuracy, by Agresti and Coull, so that 0 of 5 and 5 of 5 are not certain."""
        share = (self.right + 2) / (self.asked + 4)
        return math.sqrt(share * (1 - share) / (self.asked + 4))


def by_kind(kinds: Sequence[Iterable[str]], hits: Sequence[bool]) -> dict[str, Score]:
    """Scores for each kind; an answer may be of several kinds."""
    found: dict[str, list[bool]] = defaultdict(list)
    for own, hit in zip(kinds, hits, strict=True):
        for kind in own:
            found[kind].append(hit)
    return {kind: Score(sum(values), len(values)) for kind, values in sorted(found.items())}


def table(columns: dict[str, dict[str, Score]]) -> str:
    """Scores as text: a line for each kind, a column for each way of running.

    Args:
        columns: for each column's head the scores by kind; all have the same kinds.
    """
    first = next(iter(columns.values()))
    wide = max(len(kind) for kind in first)
    lines = [" ".join([" " * wide, "    n", *(f"{head:>14}" for head in columns)])]
    for kind, score in first.items():
        cells = [_cell(scores[kind]) for scores in columns.values()]
        lines.append(" ".join([kind.ljust(wide), f"{score.asked:5}", *(f"{cell:>14}" for cell in cells)]))
    return "\n".join(lines)


def count_different(answers: Mapping[str, Sequence[str]]) -> int:
    """Questions that not all ways of running answer alike.

    Args:
        answers: for each way of running the answers in the order of the questions.
    """
    return sum(len(set(row)) > 1 for row in zip(*answers.values(), strict=True))


def agreement(num_ways: int, num_asked: int, num_different: int) -> str:
    """Whether all ways of running answer alike; empty where there is one alone."""
    if num_ways == 1:
        return ""
    if num_different:
        return f"{num_different} of {num_asked} answers differ between the ways of running."
    return f"All {num_ways} ways of running gave the same {num_asked} answers."


def _cell(score: Score) -> str:
    return f"{100 * score.accuracy:.1f} +-{100 * score.standard_error:4.1f}"

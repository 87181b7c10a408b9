"""Results side by side: a table of ratios, and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from chiasm.bench.results import Figure, Group, common_figures
from chiasm.bench.spread import Difference, hold_against

_OF_THE_LOAD = ("model_id", "num_prompts", "max_concurrency", "burstiness")
_VERDICTS = {"better": "better", "worse": "worse", "same": "within noise", "unknown": "noise unknown"}


class Table:
    """Groups of runs held against the first of them.

    Attributes:
        head: of the columns.
        rows: cells, the figure's title first.
        note: what the reader has to know.
    """

    def __init__(self, groups: Sequence[Group]) -> None:
        self.head = ["", f"{groups[0].name} (base)", *(group.name for group in groups[1:])]
        with_rate = len({rate for group in groups for rate in group.rates}) > 1
        self.rows = [row for rate in groups[0].rates for row in self._block(rate, groups, with_rate=with_rate)]
        self.note = " ".join(_notes(groups))

    @classmethod
    def _block(cls, rate: float, groups: Sequence[Group], *, with_rate: bool) -> list[list[str]]:
        """The rows of the runs with one rate."""
        base, *others = (group.at(rate) for group in groups)
        rows = [cls._row(figure, base, others) for figure in common_figures(groups)]
        if with_rate:
            how_fast = "all at once" if math.isinf(rate) else f"at {rate:g} requests/s"
            rows = [[f"{title}, {how_fast}", *cells] for title, *cells in rows]
        return rows

    @staticmethod
    def _row(figure: Figure, base: Group, others: Sequence[Group]) -> list[str]:
        own = base.spread(figure.key)
        cells = [figure.title, f"{own.median:.2f}{_noise(own.noise)}"]
        for group in others:
            if not group.runs:
                cells.append("-")
                continue
            spread = group.spread(figure.key)
            difference = hold_against(spread, own, more_is_better=figure.more_is_better)
            cells.append(f"{spread.median:.2f}{_noise(spread.noise)}  {_verdict(difference)}")
        return cells

    def as_text(self) -> str:
        """Aligned for a terminal."""
        rows = [self.head, *self.rows]
        wide = [max(len(row[column]) for row in rows) for column in range(len(self.head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, wide, strict=True)).rstrip() for row in rows]
        return "\n".join([*lines, "", self.note])

    def as_markdown(self) -> str:
        """As pull requests show it."""
        rule = ["---"] * len(self.head)
        rows = [[cell.replace("|", "\\|") for cell in row] for row in (self.head, rule, *self.rows)]
        lines = [f"| {' | '.join(row)} |" for row in rows]
        return "\n".join([*lines, "", self.note])


def _notes(groups: Sequence[Group]) -> Iterator[str]:
    """What the table doesn't say by itself."""
    counts = ", ".join(f"{group.name}: {len(group.runs)}" for group in groups)
    yield f"Medians of runs ({counts}); ± is half of the way from the smallest to the largest."
    yield "x is the ratio to the base; it counts as better or worse where no run lies among the base's."
    if any(group.num_failed for group in groups):
        failed = ", ".join(f"{group.name}: {group.num_failed}" for group in groups)
        yield f"Requests that failed, which are in no figure: {failed}."
    left_out = sorted({rate for group in groups for rate in group.rates} - set(groups[0].rates))
    if left_out:
        yield f"Left out, since the base has no such rate: {', '.join(f'{rate:g}' for rate in left_out)}."
    for group in groups:
        if unlike := group.differing(_OF_THE_LOAD):
            yield f"Runs of {group.name} are not of the same thing: they differ in {', '.join(unlike)}."


def _noise(noise: float | None) -> str:
    return "" if noise is None else f" ±{100 * noise:.1f}%"


def _verdict(difference: Difference) -> str:
    ratio = "" if difference.ratio is None else f"{difference.ratio:.2f}x, "
    return f"{ratio}{_VERDICTS[difference.verdict]}"

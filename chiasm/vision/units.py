"""Units by themselves: where one may be cut, and in which order its rows stand then. Pure functions, no torch."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]


class RowRun(NamedTuple):
    """``num_stretches`` neighbouring stretches of ``length`` rows, none of which is ever cut."""

    length: int
    num_stretches: int


class UnitLayout(NamedTuple):
    """A unit's rows in cut order: stretches that no rank shares follow one another, larger ones first.

    Attributes:
        order: [blocks], for each merge block in cut order its index in the order of pixels and tokens.
        inverse: [blocks], the way back.
    """

    order: IntArray
    inverse: IntArray


@lru_cache(maxsize=1024)
def uncut_runs(grid: tuple[int, int], merge_size: int, window_blocks: int, num_extra: int = 0) -> tuple[RowRun, ...]:
    """A unit's rows in cut order, as stretches between allowed borders.

    Args:
        grid: (rows, columns) of its patches.
        merge_size: side of a merge block in patches.
        window_blocks: side of a window in merge blocks; 0 for none, then a stretch is one merge block.
        num_extra: rows behind those of the patches, each of which may be cut off.
    """
    block_rows = merge_size**2
    rows, columns = grid[0] // merge_size, grid[1] // merge_size
    extra = (RowRun(1, num_extra),) if num_extra else ()
    if not window_blocks:
        return (RowRun(block_rows, rows * columns), *extra)
    counts: dict[int, int] = {}
    for height, num_high in _pieces(rows, window_blocks):
        for width, num_wide in _pieces(columns, window_blocks):
            size = height * width * block_rows
            counts[size] = counts.get(size, 0) + num_high * num_wide
    return (*(RowRun(size, counts[size]) for size in sorted(counts, reverse=True)), *extra)


def _pieces(total: int, side: int) -> list[tuple[int, int]]:
    """(length, how many) of the pieces that ``total`` falls into."""
    pieces = [(side, total // side), (total % side, 1)]
    return [(length, count) for length, count in pieces if length and count]


@lru_cache(maxsize=256)
def unit_layout(grid: tuple[int, int], merge_size: int, window_blocks: int) -> UnitLayout:
    """The order of a unit's merge blocks in which it is computed and cut; see ``uncut_runs``.

    Attention does not care about the order of windows; with equal sizes side by side one call serves them all.
    """
    rows, columns = grid[0] // merge_size, grid[1] // merge_size
    if not window_blocks:
        order = np.arange(rows * columns)
        return UnitLayout(order, order)
    row, column = np.indices((rows, columns)).reshape(2, -1)
    window = row // window_blocks * -(-columns // window_blocks) + column // window_blocks
    sizes = np.bincount(window)
    order = np.lexsort((window, -sizes[window]))
    return UnitLayout(order, np.argsort(order))


def nearest_border(grid: tuple[int, int], merge_size: int, window_blocks: int, row: float, num_extra: int = 0) -> int:
    """The allowed border, in cut order, that is nearest to ``row``; 0 and the unit's end are borders too."""
    start = 0
    for length, count in uncut_runs(grid, merge_size, window_blocks, num_extra):
        stop = start + length * count
        if row < stop:
            return start + round((row - start) / length) * length
        start = stop
    return start


def runs_between(
    grid: tuple[int, int], merge_size: int, window_blocks: int, start: int, stop: int
) -> tuple[RowRun, ...]:
    """The stretches from border ``start`` to border ``stop``."""
    found = []
    first = 0
    for length, count in uncut_runs(grid, merge_size, window_blocks):
        last = first + length * count
        low, high = max(start, first), min(stop, last)
        if low < high:
            assert (low - first) % length == 0
            assert (high - first) % length == 0
            found.append(RowRun(length, (high - low) // length))
        first = last
    return tuple(found)


class Piece(NamedTuple):
    """Rows of a unit that a tower computes, in cut order.

    Attributes:
        grid: (rows, columns) of the whole unit's patches.
        start: the first row.
        stop: one past the last row.
    """

    grid: tuple[int, int]
    start: int
    stop: int

    @classmethod
    def whole(cls, grid: tuple[int, int]) -> Piece:
        """All rows of a unit."""
        return cls(grid, 0, grid[0] * grid[1])

    @property
    def num_rows(self) -> int:
        """Rows in it."""
        return self.stop - self.start

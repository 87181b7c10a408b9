"""Where a unit may be cut, and in which order its rows stand."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chiasm.vision.units import nearest_border, runs_between, uncut_runs, unit_layout
from tests.vision.shapes import Grid, grids


def borders(grid: Grid, merge_size: int, window_blocks: int) -> list[int]:
    found = [0]
    for length, num_stretches in uncut_runs(grid, merge_size, window_blocks):
        for _ in range(num_stretches):
            found.append(found[-1] + length)
    return found


@given(grid=grids(), window_blocks=st.integers(0, 5))
def test_the_stretches_are_all_rows(grid: Grid, window_blocks: int) -> None:
    assert borders(grid, 2, window_blocks)[-1] == grid[0] * grid[1]
    lengths = [run.length for run in uncut_runs(grid, 2, window_blocks)]
    assert lengths == sorted(set(lengths), reverse=True)


@given(grid=grids(), window_blocks=st.integers(0, 5), part=st.floats(0, 1))
def test_the_nearest_border_is_one_and_the_nearest(grid: Grid, window_blocks: int, part: float) -> None:
    row = part * grid[0] * grid[1]
    allowed = borders(grid, 2, window_blocks)
    chosen = nearest_border(grid, 2, window_blocks, row)
    assert chosen in allowed
    assert abs(chosen - row) <= min(abs(border - row) for border in allowed) + 1e-9


@given(grid=grids(), window_blocks=st.integers(0, 5), num_extra=st.integers(1, 9), part=st.floats(0, 1))
def test_rows_behind_the_patches_may_be_cut_anywhere(
    grid: Grid, window_blocks: int, num_extra: int, part: float
) -> None:
    num_patches = grid[0] * grid[1]
    runs = uncut_runs(grid, 2, window_blocks, num_extra)
    assert sum(length * count for length, count in runs) == num_patches + num_extra
    row = num_patches + part * num_extra
    assert abs(nearest_border(grid, 2, window_blocks, row, num_extra) - row) <= 0.5


@given(grid=grids(), window_blocks=st.integers(0, 5))
def test_the_order_is_a_permutation_and_its_inverse(grid: Grid, window_blocks: int) -> None:
    layout = unit_layout(grid, 2, window_blocks)
    blocks = np.arange(grid[0] * grid[1] // 4)
    assert (np.sort(layout.order) == blocks).all()
    assert (layout.order[layout.inverse] == blocks).all()


@given(grid=grids(), window_blocks=st.integers(1, 5))
def test_a_stretch_holds_one_window(grid: Grid, window_blocks: int) -> None:
    columns = grid[1] // 2
    layout = unit_layout(grid, 2, window_blocks)
    windows = [
        (block // columns // window_blocks, block % columns // window_blocks) for block in layout.order.tolist()
    ]
    found = borders(grid, 2, window_blocks)
    stretches = [set(windows[a // 4 : b // 4]) for a, b in itertools.pairwise(found)]
    assert all(len(stretch) == 1 for stretch in stretches)
    assert len(set().union(*stretches)) == len(stretches)


@given(grid=grids(), window_blocks=st.integers(0, 5), data=st.data())
def test_runs_between_borders_add_up(grid: Grid, window_blocks: int, data: st.DataObject) -> None:
    allowed = borders(grid, 2, window_blocks)
    start, stop = sorted(data.draw(st.tuples(st.sampled_from(allowed), st.sampled_from(allowed))))
    runs = runs_between(grid, 2, window_blocks, start, stop)
    assert sum(length * num_stretches for length, num_stretches in runs) == stop - start

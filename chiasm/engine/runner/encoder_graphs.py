"""Passes through the tower that were recorded once and are played again: a CUDA graph for each stage of a pass.

There are such graphs for some numbers of rows. What they read has fixed places. A pass is copied there, filled up to
the next such number with units that nobody asked for, which attend only to themselves. It can be left off between
stages as any other. All graphs share their memory, so one pass at a time is in them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chiasm.engine.runner.graphs import Recorder
from chiasm.errors import UserError
from chiasm.logs import get_logger
from chiasm.ops.segments import Segments, SharedRows
from chiasm.ops.staging import Staging, packed_size
from chiasm.ops.varlen import FixedBorders, VarlenKernel
from chiasm.schema.facts import EncoderShape
from chiasm.vision.stages import StagedPass, Stages
from chiasm.vision.tables import Array, PassTables, TableTower, encode
from chiasm.vision.units import Piece

_log = get_logger(__name__)

_SMALLEST = 256  # rows, where they aren't those of tiles
# A kernel is launched for all segments that a graph has room for. An empty one costs some blocks of threads, which
# return at once: one for each head and each 64 or 128 rows of the longest segment that there may be.
_ROWS_OF_UNIT = 64  # on average at least
_SHARE_OF_WINDOW = 4  # a window has a quarter of its rows at least, on average
_MIN_SEGMENTS = 16

Why = Literal[
    "in graphs",
    "launched anew: more patches than the largest graph has",
    "launched anew: more images or windows than a graph has room for",
    "launched anew: units that ranks share",
    "launched anew: another pass is in the graphs",
]
"""What became of a pass."""


def pass_sizes(max_rows: int, shape: EncoderShape) -> tuple[int, ...]:
    """Numbers of rows that are recorded: powers of two times the smallest, those halfway between, and the largest.

    Args:
        max_rows: no more than those; where the smallest is more, nothing is recorded.
        shape: of the tower. Where its units are tiles of one size, the smallest is a tile.
    """
    smallest = shape.tile_side**2 or -(-_SMALLEST // shape.block_rows) * shape.block_rows
    most = max_rows // smallest
    powers = [1 << exponent for exponent in range(most.bit_length())]
    numbers = {*powers, *(3 * power for power in powers), most}
    return tuple(smallest * number for number in sorted(numbers) if 0 < number <= most)


def filling(num_rows: int, shape: EncoderShape) -> list[Piece]:
    """Units of so many rows in all; of few different sizes, because tables are kept for each size.

    Args:
        num_rows: whole merge blocks, or whole tiles where units are tiles of one size.
        shape: of the tower.
    """
    if shape.tile_side:
        side = (shape.tile_side, shape.tile_side)
        return [Piece.whole(side)] * (num_rows // shape.tile_side**2)
    num_blocks, merge = num_rows // shape.block_rows, shape.merge_size
    exponents = [exponent for exponent in range(num_blocks.bit_length()) if num_blocks >> exponent & 1]
    sides = [(1 << exponent // 2, 1 << exponent - exponent // 2) for exponent in reversed(exponents)]
    return [Piece.whole((rows * merge, columns * merge)) for rows, columns in sides]


class _Limit(NamedTuple):
    """On segments of a kind in a graph: their number, and the rows of one."""

    most: int
    longest: int


def _limits(num_rows: int, shape: EncoderShape, kinds: Sequence[Segments]) -> list[_Limit]:
    """Of each kind of segments in a graph; ``kinds`` are those of a pass that fills it."""
    if shape.tile_side:
        return [_Limit(run.count, run.length) for segments in kinds for run in segments.runs]
    limits = [_Limit(max(_MIN_SEGMENTS, num_rows // _ROWS_OF_UNIT), num_rows)]
    window = shape.window_patches
    if window:
        limits.append(_Limit(max(_MIN_SEGMENTS, _SHARE_OF_WINDOW * num_rows // window), window))
    assert len(limits) == len(kinds)
    return limits


def _borders(segments: Segments, count: int) -> npt.NDArray[np.int32] | None:
    """[count + 1], where segments begin and end, those that are missing being empty; None if there are more."""
    assert not any(run.num_padding for run in segments.runs)
    ends = np.repeat([run.length for run in segments.runs], [run.count for run in segments.runs]).cumsum()
    if len(ends) > count:
        return None
    borders = np.full(count + 1, segments.num_rows, np.int32)
    borders[0] = 0
    borders[1 : len(ends) + 1] = ends
    return borders


class _RepeatedPass:
    """A pass that begins anew whenever its first stage is asked for; its features go to a fixed place."""

    def __init__(self, begin: Callable[[], Stages], features: Tensor) -> None:
        self._begin = begin
        self._features = features
        self._pass: StagedPass | None = None

    def run(self, stage: int) -> None:
        """Compute a stage; they come in order."""
        if stage == 0:
            self._pass = StagedPass(self._begin())
        assert self._pass is not None
        self._pass.advance(stage + 1)
        if self._pass.features is not None:
            self._features.copy_(self._pass.features)
            self._pass = None  # what it holds is free for the next graph


class _Graphs(NamedTuple):
    """Recorded stages, and what they take.

    Attributes:
        num_rows: of pixels.
        limits: on each kind of segments.
        replays: one for each stage.
    """

    num_rows: int
    limits: Sequence[_Limit]
    replays: Sequence[Callable[[], object]]


class _Fitting(NamedTuple):
    """The graphs for a pass, and its tables, filled up."""

    graphs: _Graphs
    arrays: Sequence[Array]


class EncoderGraphs:
    """Recorded passes of a tower.

    Args:
        tower: that is recorded; its weights are all on this rank.
        kernel: what it attends with.
        shape: of the tower.
        row_bytes: of a patch.
        sizes: numbers of rows that are recorded; see ``pass_sizes``.
        device: where the tower is.
        dtype: of the features.

    Attributes:
        num_passes: so far, by what became of them.
    """

    def __init__(
        self,
        tower: TableTower,
        kernel: VarlenKernel,
        shape: EncoderShape,
        *,
        row_bytes: int,
        sizes: Sequence[int],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.num_passes: Counter[str] = Counter()
        self._tower = tower
        self._kernel = kernel
        self._shape = shape
        self._sizes = sizes
        self._staging = Staging(device)
        self._graphs: dict[int, _Graphs] = {}
        self._is_taken = False
        largest = sizes[-1]
        self._pixels = torch.zeros(largest, row_bytes, dtype=torch.uint8, device=device)
        self._place = torch.zeros(packed_size(self._filled(largest).arrays), dtype=torch.uint8, device=device)
        self._features = torch.zeros(largest // shape.block_rows, shape.feature_size, dtype=dtype, device=device)

    def record(self, recorder: Recorder) -> None:
        """Record every number of rows, the largest first, whose memory then serves the others.

        Raises:
            UserError: if the tower does something that can't be recorded, or there isn't memory enough.
        """
        for size in reversed(self._sizes):
            try:
                self._graphs[size] = self._recorded(size, recorder)
            except RuntimeError as error:
                raise UserError(
                    f"the encoder's pass over {size} patches can't be recorded as CUDA graphs: {error}. "
                    "Start with encoder_graph_max_patches=0.",
                    param="encoder_graph_max_patches",
                ) from error

    def encode(self, pixels: Tensor, pieces: Sequence[Piece], shared: SharedRows | None = None) -> Stages:
        """A pass, played where that can be and launched anew where not; see ``VisionLanguageModel.encode_vision``."""
        found = self._find(pieces, shared)
        if isinstance(found, _Fitting):
            self.num_passes["in graphs"] += 1
            return (yield from self._play(found, pixels))
        if not self.num_passes[found]:
            _log.info("an encoder pass is %s; further ones are counted only", found)
        self.num_passes[found] += 1
        return (yield from encode(self._tower, pixels, pieces, shared))

    def _find(self, pieces: Sequence[Piece], shared: SharedRows | None) -> _Fitting | Why:
        """Which graphs a pass can be played in, or why in none."""
        num_rows = sum(piece.num_rows for piece in pieces)
        if shared is not None:
            return "launched anew: units that ranks share"
        if num_rows > self._sizes[-1]:
            return "launched anew: more patches than the largest graph has"
        if self._is_taken:
            return "launched anew: another pass is in the graphs"
        graphs = self._graphs[self._sizes[bisect_left(self._sizes, num_rows)]]
        tables = self._tower.tables([*pieces, *filling(graphs.num_rows - num_rows, self._shape)], None)
        arrays = _arrays(tables, graphs.limits)
        if arrays is None:
            return "launched anew: more images or windows than a graph has room for"
        return _Fitting(graphs, arrays)

    def _play(self, fitting: _Fitting, pixels: Tensor) -> Stages:
        *replays, last = fitting.graphs.replays
        self._is_taken = True
        try:
            self._pixels[: len(pixels)].copy_(pixels)  # what is behind them are bytes of earlier passes
            self._staging.move(fitting.arrays, into=self._place)
            for replay in replays:
                replay()
                yield
            last()
            return self._features[: len(pixels) // self._shape.block_rows].clone()
        finally:
            self._is_taken = False

    def _filled(self, size: int) -> _Fitting:
        """Graphs of a size that are still to be recorded, and a pass that fills them."""
        tables = self._tower.tables(filling(size, self._shape), None)
        limits = _limits(size, self._shape, tables.segments)
        arrays = _arrays(tables, limits)
        assert arrays is not None
        return _Fitting(_Graphs(size, limits, ()), arrays)

    def _recorded(self, size: int, recorder: Recorder) -> _Graphs:
        graphs, arrays = self._filled(size)
        moved = self._staging.move(arrays, into=self._place)
        num_tables = len(moved) - len(graphs.limits)
        segments = [
            Segments((), placed=FixedBorders(self._kernel, borders, limit.longest, int(array[-1])))
            for borders, limit, array in zip(moved[num_tables:], graphs.limits, arrays[num_tables:], strict=True)
        ]
        begin = partial(self._tower.stages, self._pixels[:size], moved[:num_tables], segments)
        repeated = _RepeatedPass(begin, self._features[: size // self._shape.block_rows])
        stages = range(self._shape.num_stages)
        recorder.warm_up(lambda: list(map(repeated.run, stages)))
        return graphs._replace(replays=[recorder.record(partial(repeated.run, stage)).replay for stage in stages])


def _arrays(tables: PassTables, limits: Sequence[_Limit]) -> list[Array] | None:
    """What is copied for a pass: its tables, and the borders of each kind of segments; None if there are too many."""
    borders = [_borders(segments, limit.most) for segments, limit in zip(tables.segments, limits, strict=True)]
    found = [one for one in borders if one is not None]
    return [*tables.rows, *found] if len(found) == len(borders) else None

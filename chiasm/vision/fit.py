"""Measuring, at start-up, how fast this machine computes a tower and how fast its ranks talk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import torch

from chiasm.dist.group import Group
from chiasm.ops.attention import attend_unit
from chiasm.schema.facts import EncoderRates, EncoderShape
from chiasm.vision.cost import full_attention_flops, linear_flops
from chiasm.vision.stages import Encoder, whole_pass
from chiasm.vision.units import Piece

SECONDS = 2.0
"""Most that a fit takes, but for a single pass that is longer."""

_SMALL_SIDE, _MAX_SIDE = 4, 32  # of units, in merge blocks
_MIN_TILES, _MAX_TILES = 4, 16  # of a large pass, where all units are alike
_MAX_ROWS = 4096
_MAX_REPEATS = 4
_WARM_UPS = 3
_SMALL_MESSAGE, _LARGE_MESSAGE = 64, 1 << 19  # elements


@dataclass(frozen=True)
class Fit:
    """Measures a loaded tower; every rank of the group calls ``rates`` at the same time.

    Attributes:
        encoder: the tower.
        shape: of the tower.
        row_bytes: of a patch.
        group: the ranks.
        is_sharded: whether the tower's weights are spread over them.
        device: where it is.
        dtype: of its activations.
        packs_units: see ``EncoderRates``.
    """

    encoder: Encoder
    shape: EncoderShape
    row_bytes: int
    group: Group
    is_sharded: bool
    device: torch.device
    dtype: torch.dtype
    packs_units: bool

    @torch.inference_mode()
    def rates(self, seconds: float = SECONDS) -> EncoderRates:
        """Measure for about ``seconds``.

        A pass takes a time for each operation that is linear in the rows, and one for each of full attention. The
        latter is measured on the attention op alone, the former on a unit as large as there is time for, or on as
        many where all are tiles of one size. Where a rank packs its units, as on a GPU, a smaller pass tells what one
        takes besides. On a CPU a small one only shows that small matrices are slow; to take that for a price of
        passes would praise plans with few of them.
        """
        self._warm_up()
        exchange, byte = self._link()
        attention = self._attention(0.15 * seconds)
        link = _Link(exchange, byte, attention)
        small = self._timed(self._small, link, 0.25 * seconds)
        flop, fixed = small.seconds / small.flops, 0.0
        larger = self._larger(0.5 * seconds / small.pass_seconds)
        if larger is not None:
            large = self._timed(larger, link, 0.5 * seconds)
            flop = large.seconds / large.flops
            if self.packs_units:
                flop = max(large.seconds - small.seconds, 0.5 * large.seconds) / (large.flops - small.flops)
                fixed = max(0.0, small.seconds - flop * small.flops)
        return EncoderRates(
            seconds_per_pass=fixed,
            seconds_per_flop=flop,
            seconds_per_attention_flop=attention,
            seconds_per_exchange=exchange,
            seconds_per_byte=byte,
            bytes_per_element=self.dtype.itemsize,
            can_overlap=self.device.type != "cpu",
            packs_units=self.packs_units,
        )

    @property
    def _small(self) -> _Squares:
        side = self.shape.tile_side
        return _Squares(side // self.shape.merge_size if side else _SMALL_SIDE, 1)

    def _larger(self, factor: float) -> _Squares | None:
        """A pass of about ``factor`` times the small one's time; None if it would tell no more."""
        if self.shape.tile_side:
            number = min(int(factor), _MAX_TILES)
            return _Squares(self._small.side, number) if number >= _MIN_TILES else None
        side = min(int(_SMALL_SIDE * math.sqrt(factor)), _MAX_SIDE)
        return _Squares(side, 1) if side >= 2 * _SMALL_SIDE else None

    def _timed(self, squares: _Squares, link: _Link, seconds: float) -> _Timed:
        """The linear work of a pass over square units and its time; what is known of its time is taken off.

        Args:
            squares: what is encoded.
            link: what has been measured already.
            seconds: to measure for.
        """
        shape = self.shape
        unit_rows = self._piece(squares).num_rows
        num_rows = squares.number * unit_rows
        took = self._time(partial(self._pass, squares), seconds)
        divisor = self.group.size if self.is_sharded else 1
        known = link.attention * squares.number * full_attention_flops(shape, unit_rows) / divisor
        if self.is_sharded:
            num_bytes = num_rows * shape.hidden_size * self.dtype.itemsize * 2 * (divisor - 1) / divisor
            known += 2 * shape.num_layers * (link.exchange + link.byte * num_bytes)
        flops = squares.number * linear_flops(shape, unit_rows)
        return _Timed(took, max(took - known, 0.5 * took), flops / divisor)

    def _pass(self, squares: _Squares) -> None:
        """Encode square units, or as many rows of others."""
        piece = self._piece(squares)
        num_pixels = squares.number * min(piece.num_rows, math.prod(piece.grid))
        pixels = torch.zeros(num_pixels, self.row_bytes, dtype=torch.uint8, device=self.device)
        whole_pass(self.encoder(pixels, [piece] * squares.number, None))

    def _piece(self, squares: _Squares) -> Piece:
        side = squares.side * self.shape.merge_size
        canvas = self.shape.canvas
        if canvas is None:
            return Piece.whole((side, side))
        return Piece((canvas.side, canvas.side), 0, min(side**2, canvas.unit_rows))

    def _attention(self, seconds: float) -> float:
        """Seconds per operation of the attention op, at a size that fits into the time."""
        shape = self.shape
        num_rows, took, flops = 128, 0.0, 1.0
        while num_rows < _MAX_ROWS and took < seconds / 16:
            num_rows *= 2
            size = (num_rows, shape.num_heads, shape.hidden_size // shape.num_heads)
            q, k, v = (torch.rand(size, dtype=self.dtype, device=self.device) for _ in range(3))
            took = self._time(partial(attend_unit, q, k, v, 0.1), seconds / 4)
            flops = 4.0 * num_rows * num_rows * shape.hidden_size
        return took / flops

    def _link(self) -> tuple[float, float]:
        """Seconds of an exchange that moves next to nothing, and of each byte that a rank receives."""
        if self.group.size == 1:
            return 0.0, 0.0
        small, large = (self._time(partial(self._exchange, size), 0.05) for size in (_SMALL_MESSAGE, _LARGE_MESSAGE))
        num_bytes = (_LARGE_MESSAGE - _SMALL_MESSAGE) * self.dtype.itemsize
        return small, max(0.0, large - small) / num_bytes

    def _exchange(self, num_elements: int) -> None:
        """All-to-all in which every rank receives so many elements in all."""
        others = self.group.size - 1
        counts = [0 if rank == self.group.rank else num_elements // others for rank in range(self.group.size)]
        outgoing = torch.zeros(sum(counts), dtype=self.dtype, device=self.device)
        self.group.start_all_to_all(outgoing, counts, counts).wait()

    def _warm_up(self) -> None:
        """Have libraries load and connections made on next to no work, so that no such time is taken for a rate."""
        for _ in range(_WARM_UPS):
            self._pass(self._small if self.shape.tile_side else _Squares(1, 1))
            if self.group.size > 1:
                self._exchange(_SMALL_MESSAGE)

    def _time(self, call: Callable[[], object], seconds: float) -> float:
        """The least of some calls' times, each the mean over the ranks, which call together and equally often.

        There are as many as fit into the time, two at the least unless one takes longer than all of it.
        """
        best = first = self._time_once(call)
        for _ in range(min(_MAX_REPEATS, max(int(seconds / first) - 1, int(first < seconds)))):
            best = min(best, self._time_once(call))
        return best

    def _time_once(self, call: Callable[[], object]) -> float:
        start = time.perf_counter()
        call()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        took = torch.tensor([time.perf_counter() - start], dtype=torch.float64, device=self.device)
        return float(self.group.all_reduce(took).item()) / self.group.size


class _Squares(NamedTuple):
    """``number`` square units of ``side`` merge blocks, in one pass."""

    side: int
    number: int


class _Link(NamedTuple):
    """Seconds of an exchange, of a byte in it, and of an operation of attention."""

    exchange: float
    byte: float
    attention: float


class _Timed(NamedTuple):
    """A pass, what of it is linear work, and the operations of that."""

    pass_seconds: float
    seconds: float
    flops: float

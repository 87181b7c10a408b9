"""Encoding a plan's units on the ranks: load, agree, encode, agree, gather; at once, or in several steps.

Every rank runs this with the same plan and goes equally far in each step. A rank may fail in what it does alone
(reading pixels, computing its rows); it then says so in the agreement before or after the exchange in question, which
it takes part in all the same, so that the units are lost and nothing else is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chiasm.dist.group import Group
from chiasm.logs import get_logger
from chiasm.ops.segments import SharedRows
from chiasm.ops.staging import Staging
from chiasm.schema.facts import EncoderShape
from chiasm.schema.media import PixelRef, Unit
from chiasm.schema.plan import VisionPlan
from chiasm.vision.exchange import RowExchange
from chiasm.vision.rank_units import Pixels, RankPart, RankUnits, parts_by_rank
from chiasm.vision.stages import Encoder, Stages
from chiasm.vision.timeline import Span, Timeline
from chiasm.vision.units import UnitLayout, unit_layout

_log = get_logger(__name__)

RowReader = Callable[[PixelRef], npt.NDArray[np.uint8]]
"""Gives [num_rows, row_bytes], and reads no more than is looked at; raises RuntimeError if they are gone."""


@dataclass(frozen=True)
class EncodedUnits:
    """What a step's encoding gave.

    Attributes:
        features: unit key -> [tokens, columns], each tensor owning storage of exactly its size; on every rank, once
            the plan's last stage is done.
        failed: keys of units that could not be encoded, in the step in which it shows; the same on every rank.
        seconds: time that each rank spent on its own part; where ranks work in step, waiting for others included.
        makespan: seconds on this rank until all were through, and from the last stage on had the features.
        exchanged_bytes: what each rank received from others within layers of the tower, if units are cut.
        spans: what this rank did when.
    """

    features: dict[str, Tensor]
    failed: frozenset[str]
    seconds: tuple[float, ...]
    makespan: float
    exchanged_bytes: tuple[int, ...]
    spans: tuple[Span, ...]


class _Agreed(NamedTuple):
    """What all ranks know: the units that are lost, and each rank's seconds and bytes."""

    failed: frozenset[str]
    seconds: tuple[float, ...]
    num_bytes: tuple[int, ...]


@dataclass(frozen=True)
class UnitEncoder:
    """Encodes the units of plans on this rank and shares the results.

    Attributes:
        encoder: the tower.
        shape: of the tower.
        row_bytes: of a patch.
        group: the ranks that the plan speaks of.
        read_rows: reads rows of pixels.
        device: where the tower is.
        dtype: of the features.
        packs_units: whether a rank encodes its whole units at once. It fills a GPU; on a CPU it gains nothing, and
            there the last bits of a matrix product can depend on its number of rows. Apart, a unit's features are the
            same wherever it is placed. In a plan with a cut unit everything is one pass, so that ranks wait for each
            other once a layer and not once a unit.
    """

    encoder: Encoder
    shape: EncoderShape
    row_bytes: int
    group: Group
    read_rows: RowReader
    device: torch.device
    dtype: torch.dtype
    packs_units: bool

    @cached_property
    def _staging(self) -> Staging:
        return Staging(self.device)

    def begin(self, plan: VisionPlan) -> PlanUnderWay:
        """Take up a plan; every rank of the group does so with the same one."""
        return PlanUnderWay(self, plan)

    def load(self, parts: Sequence[RankPart]) -> Pixels:
        """The pixels of this rank's rows, in cut order; a unit whose pixels can't be read is left out."""
        loaded: Pixels = {}
        for part in parts:
            try:
                loaded[part] = torch.from_numpy(self._read(part))
            except Exception as error:  # whatever it is, the others must hear that the unit is lost
                _log.error("unit %s: its pixels can't be read: %s", part.unit.key[:12], error)
        return loaded

    def _read(self, part: RankPart) -> npt.NDArray[np.uint8]:
        block_rows = self.shape.block_rows
        order = self._layout(part.unit).order[part.share.start // block_rows : part.share.stop // block_rows]
        rows = self.read_rows(part.unit.pixels)
        return rows.reshape(-1, block_rows, rows.shape[1])[order].reshape(-1, rows.shape[1])

    def _layout(self, unit: Unit) -> UnitLayout:
        return unit_layout(unit.grid, self.shape.merge_size, self.shape.window_blocks)

    def make_pass(self, pixels: Pixels, shared: SharedRows | None) -> Stages:
        """One pass over some parts; features in cut order."""
        rows = self._staging.move_rows(list(pixels.values()), self.row_bytes)
        return (yield from self.encoder(rows, [part.piece for part in pixels], shared))

    def no_rows(self, *size: int) -> Tensor:
        """[0, *size] of the kind of the features."""
        return torch.empty(0, *size, dtype=self.dtype, device=self.device)

    def seconds_since(self, start: float) -> float:
        """Time until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # the language model may go on in another
        return time.perf_counter() - start

    def land(self, found: Sequence[tuple[RankPart, Tensor]]) -> Tensor:
        """A unit's features from its parts, in the order of its tokens, in storage of exactly their size."""
        in_cut_order = [rows for _, rows in sorted(found, key=lambda pair: pair[0].share.start)]
        if not self.shape.window_blocks:
            return torch.cat(in_cut_order)
        rows = in_cut_order[0] if len(found) == 1 else torch.cat(in_cut_order)
        return rows[torch.from_numpy(self._layout(found[0][0].unit).inverse).to(self.device)]


class PlanUnderWay:
    """A plan on this rank, from its pixels to its features.

    Args:
        encoder: what it is encoded with.
        plan: what to encode.
    """

    def __init__(self, encoder: UnitEncoder, plan: VisionPlan) -> None:
        assert len({unit.key for unit in plan.units}) == len(plan.assignments), "a unit is encoded once"
        self._encoder = encoder
        self._group = encoder.group
        self._plan = plan
        self._parts = parts_by_rank(plan, self._group.size)
        self._is_sharded = not all(assignment.shares for assignment in plan.assignments)
        self._timeline = Timeline()
        self._exchange: RowExchange | None = None
        self._own: RankUnits | None = None
        self._failed: frozenset[str] = frozenset()
        self._told_bytes = 0

    def advance(self, num_stages: int) -> EncodedUnits:
        """Go on until so many stages are done. Every rank is told the same; with the last one the features are there.

        Stages are the tower's (``EncoderShape.num_stages``), each of them one of every pass.
        """
        start = time.perf_counter()
        own = self._own = self._own or self._load()
        is_last = num_stages == self._encoder.shape.num_stages
        with self._timeline.span("encode"):
            own.advance(num_stages)
            seconds = self._encoder.seconds_since(start)
        with self._timeline.span("agree"):
            agreed = self._agree(own.parts, seconds, self._new_bytes())
        news, self._failed = agreed.failed - self._failed, agreed.failed
        features = {}
        if is_last:
            with self._timeline.span("gather"):
                features = self._gather(own.features())
        makespan = self._encoder.seconds_since(start)
        return EncodedUnits(features, news, agreed.seconds, makespan, agreed.num_bytes, self._timeline.take())

    def _load(self) -> RankUnits:
        """Read this rank's pixels and agree on what there is to exchange."""
        encoder = self._encoder
        with self._timeline.span("load"):
            pixels = encoder.load(self._parts[self._group.rank])
        cut = [assignment for assignment in self._plan.assignments if assignment.is_cut]
        if self._is_sharded or cut:
            with self._timeline.span("agree"):
                lost = self._agree(pixels).failed
            cut = [assignment for assignment in cut if assignment.unit.key not in lost]
            pixels = {part: rows for part, rows in pixels.items() if part.unit.key not in lost}
        if cut:
            self._exchange = RowExchange(cut, self._group, encoder.shape, encoder.no_rows(), self._timeline)
        return RankUnits(
            encoder.make_pass,
            pixels,
            self._exchange,
            is_sharded=self._is_sharded,
            packs_units=encoder.packs_units,
        )

    def _new_bytes(self) -> int:
        """Received since the last call."""
        before, self._told_bytes = self._told_bytes, self._exchange.num_bytes if self._exchange else 0
        return self._told_bytes - before

    def _agree(self, succeeded: Iterable[RankPart], seconds: float = 0.0, num_bytes: int = 0) -> _Agreed:
        """Tell the others which of this rank's units failed, how long it took and what it received.

        One small sum: a flag for each unit, set by a rank that should have rows of it and has not, and slots for
        what each rank tells of itself.
        """
        group, units = self._group, self._plan.units
        missing = {part.unit.key for part in self._parts[group.rank]} - {part.unit.key for part in succeeded}
        told = torch.zeros(len(units) + 2 * group.size, dtype=torch.float64)
        own_slots = told[len(units) :].view(2, group.size)[:, group.rank]
        own_slots.copy_(torch.tensor([seconds, num_bytes], dtype=torch.float64))
        told[: len(units)] = torch.tensor([float(unit.key in missing) for unit in units])
        summed = group.all_reduce(told.to(self._encoder.device)).cpu()
        flags, times, sizes = summed.split([len(units), group.size, group.size])
        failed = frozenset(unit.key for unit, flag in zip(units, flags.tolist(), strict=True) if flag > 0)
        return _Agreed(failed, tuple(times.tolist()), tuple(map(int, sizes.tolist())))

    def _gather(self, own: dict[RankPart, Tensor]) -> dict[str, Tensor]:
        """Every unit's features on every rank; with sharded weights they are there already."""
        kept = [[part for part in of_rank if part.unit.key not in self._failed] for of_rank in self._parts]
        mine = [own[part] for part in kept[self._group.rank]]
        land = self._encoder.land
        if self._is_sharded:
            return {part.unit.key: land([(part, rows)]) for part, rows in zip(kept[0], mine, strict=True)}
        counts = [sum(part.num_tokens for part in of_rank) for of_rank in kept]
        empty = self._encoder.no_rows(self._encoder.shape.feature_size)
        gathered = self._group.gather_rows(torch.cat([empty, *mine]), counts)
        flat = [part for of_rank in kept for part in of_rank]
        by_unit: dict[str, list[tuple[RankPart, Tensor]]] = {}
        for part, rows in zip(flat, gathered.split([part.num_tokens for part in flat]), strict=True):
            by_unit.setdefault(part.unit.key, []).append((part, rows))
        return {key: land(found) for key, found in by_unit.items()}

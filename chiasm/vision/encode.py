"""Encoding one step's units on the ranks: load, agree, encode, agree, gather.

Every rank runs this with the same plan. A rank may fail in what it does alone (reading pixels, computing its rows);
it then says so in the agreement before or after the exchange in question, which it takes part in all the same, so
that the units are lost and nothing else is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chiasm.dist.group import Group
from chiasm.logs import get_logger
from chiasm.ops.segments import SharedRows
from chiasm.schema.facts import EncoderShape
from chiasm.schema.media import PixelRef, Unit
from chiasm.schema.plan import Assignment, Share, VisionPlan
from chiasm.vision.exchange import RowExchange
from chiasm.vision.timeline import Span, Timeline
from chiasm.vision.units import Piece, UnitLayout, unit_layout

_log = get_logger(__name__)

Encoder = Callable[[Tensor, Sequence[Piece], SharedRows | None], Tensor]
"""A tower; see ``VisionLanguageModel.encode_vision``."""

RowReader = Callable[[PixelRef], npt.NDArray[np.uint8]]
"""Gives [num_rows, row_bytes], and reads no more than is looked at; raises RuntimeError if they are gone."""


@dataclass(frozen=True)
class EncodedUnits:
    """What a step's encoding gave.

    Attributes:
        features: unit key -> [tokens, columns], each tensor owning storage of exactly its size; on every rank.
        failed: keys of units that could not be encoded; the same on every rank.
        seconds: time that each rank spent on its own part; where ranks work in step, waiting for others included.
        makespan: seconds on this rank from the start to the last feature.
        exchanged_bytes: what each rank received from others within layers of the tower, if units are cut.
        spans: what this rank did when.
    """

    features: dict[str, Tensor]
    failed: frozenset[str]
    seconds: tuple[float, ...]
    makespan: float
    exchanged_bytes: tuple[int, ...]
    spans: tuple[Span, ...]


class _Part(NamedTuple):
    """Rows of a unit on a rank; all of them where the encoder's weights are sharded."""

    unit: Unit
    share: Share
    is_cut: bool

    @property
    def piece(self) -> Piece:
        return Piece(self.unit.grid, self.share.start, self.share.stop)

    @property
    def num_tokens(self) -> int:
        return self.unit.num_tokens * self.share.num_rows // self.unit.num_rows


_Pixels = dict[_Part, Tensor]


class _Agreed(NamedTuple):
    """What all ranks know: the units that are lost, and each rank's seconds and bytes."""

    failed: frozenset[str]
    seconds: tuple[float, ...]
    num_bytes: tuple[int, ...]


@dataclass(frozen=True)
class UnitEncoder:
    """Encodes the units of a plan on this rank and shares the results.

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

    def encode(self, plan: VisionPlan) -> EncodedUnits:
        """Encode a plan's units; every rank of the group calls it with the same plan."""
        assert len({unit.key for unit in plan.units}) == len(plan.assignments), "a unit is encoded once"
        start = time.perf_counter()
        timeline = Timeline()
        parts = _parts_by_rank(plan, self.group.size)
        is_sharded = not all(assignment.shares for assignment in plan.assignments)
        cut = [assignment for assignment in plan.assignments if assignment.is_cut]
        with timeline.span("load"):
            pixels = self._load(parts[self.group.rank])
        if is_sharded or cut:
            with timeline.span("agree"):
                lost = self._agree(plan, parts, pixels).failed
            cut = [assignment for assignment in cut if assignment.unit.key not in lost]
            pixels = {part: rows for part, rows in pixels.items() if part.unit.key not in lost}
        exchange = self._exchange(cut, timeline) if cut else None
        with timeline.span("encode"):
            own = self._encode_pixels(pixels, exchange, is_sharded=is_sharded)
            seconds = self._seconds_since(start)
        with timeline.span("agree"):
            agreed = self._agree(plan, parts, own, seconds, exchange.num_bytes if exchange else 0)
        with timeline.span("gather"):
            features = self._gather(parts, own, agreed.failed, is_sharded=is_sharded)
            makespan = self._seconds_since(start)
        return EncodedUnits(
            features, agreed.failed, agreed.seconds, makespan, agreed.num_bytes, tuple(timeline.spans)
        )

    def _encode_pixels(
        self, pixels: _Pixels, exchange: RowExchange | None, *, is_sharded: bool
    ) -> dict[_Part, Tensor]:
        if exchange is not None:
            return self._encode_with_cuts(pixels, exchange)
        if is_sharded:
            # Every rank takes part in every unit. A rank that fails within the tower's own exchanges can't be
            # waited for: it takes the engine with it.
            return self._encode_packed(pixels) if pixels else {}
        return self._encode_apart(pixels)

    def _load(self, parts: Sequence[_Part]) -> _Pixels:
        """The pixels of this rank's rows, in cut order; a unit whose pixels can't be read is left out."""
        loaded: _Pixels = {}
        for part in parts:
            try:
                loaded[part] = torch.from_numpy(self._read(part))
            except Exception as error:  # whatever it is, the others must hear that the unit is lost
                _log.error("unit %s: its pixels can't be read: %s", part.unit.key[:12], error)
        return loaded

    def _read(self, part: _Part) -> npt.NDArray[np.uint8]:
        block_rows = self.shape.block_rows
        order = self._layout(part.unit).order[part.share.start // block_rows : part.share.stop // block_rows]
        rows = self.read_rows(part.unit.pixels)
        return rows.reshape(-1, block_rows, rows.shape[1])[order].reshape(-1, rows.shape[1])

    def _layout(self, unit: Unit) -> UnitLayout:
        return unit_layout(unit.grid, self.shape.merge_size, self.shape.window_blocks)

    def _encode_apart(self, pixels: _Pixels) -> dict[_Part, Tensor]:
        """Whole units of this rank; one that fails is left out."""
        if self.packs_units and len(pixels) > 1:
            try:
                return self._encode_packed(pixels)
            except RuntimeError as error:  # torch's own kind, out-of-memory among it
                _log.warning("encoding %d units at once failed, now one by one: %s", len(pixels), error)
        features: dict[_Part, Tensor] = {}
        for part, rows in pixels.items():
            try:
                features |= self._encode_packed({part: rows})
            except Exception as error:  # as above
                _log.error("unit %s can't be encoded: %s", part.unit.key[:12], error)
        return features

    def _exchange(self, cut: Sequence[Assignment], timeline: Timeline) -> RowExchange:
        return RowExchange(
            cut,
            self.group,
            num_heads=self.shape.num_heads,
            head_dim=self.shape.hidden_size // self.shape.num_heads,
            num_layers=self.shape.num_full_attention_layers,
            timeline=timeline,
        )

    def _encode_with_cuts(self, pixels: _Pixels, exchange: RowExchange) -> dict[_Part, Tensor]:
        """One pass over all rows of this rank, in step with the others."""
        try:
            return self._encode_packed(pixels, exchange)
        except Exception as error:  # as above; the others still wait for this rank's rows
            _log.error("a pass with cut units failed: %s", error)
            error.__traceback__ = None  # its frames hold the memory of the pass
            exchange.give_up(torch.empty(0, dtype=self.dtype, device=self.device))
            return self._encode_apart({part: rows for part, rows in pixels.items() if not part.is_cut})

    def _encode_packed(self, pixels: _Pixels, shared: SharedRows | None = None) -> dict[_Part, Tensor]:
        """One pass; features in cut order."""
        rows = torch.cat([torch.empty(0, self.row_bytes, dtype=torch.uint8), *pixels.values()])
        rows = rows.to(self.device, non_blocking=True)
        packed = self.encoder(rows, [part.piece for part in pixels], shared)
        return dict(zip(pixels, packed.split([part.num_tokens for part in pixels]), strict=True))

    def _seconds_since(self, start: float) -> float:
        """Time until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def _agree(
        self,
        plan: VisionPlan,
        parts: Sequence[Sequence[_Part]],
        succeeded: Iterable[_Part],
        seconds: float = 0.0,
        num_bytes: int = 0,
    ) -> _Agreed:
        """Tell the others which of this rank's units failed, how long it took and what it received.

        One small sum: a flag for each unit, set by a rank that should have rows of it and has not, and slots for
        what each rank tells of itself.
        """
        group = self.group
        missing = {part.unit.key for part in parts[group.rank]} - {part.unit.key for part in succeeded}
        told = torch.zeros(len(plan.units) + 2 * group.size, dtype=torch.float64)
        own_slots = told[len(plan.units) :].view(2, group.size)[:, group.rank]
        own_slots.copy_(torch.tensor([seconds, num_bytes], dtype=torch.float64))
        told[: len(plan.units)] = torch.tensor([float(unit.key in missing) for unit in plan.units])
        flags, times, sizes = (
            group.all_reduce(told.to(self.device)).cpu().split([len(plan.units), group.size, group.size])
        )
        failed = frozenset(unit.key for unit, flag in zip(plan.units, flags.tolist(), strict=True) if flag > 0)
        return _Agreed(failed, tuple(times.tolist()), tuple(map(int, sizes.tolist())))

    def _gather(
        self,
        parts: Sequence[Sequence[_Part]],
        own: dict[_Part, Tensor],
        failed: frozenset[str],
        *,
        is_sharded: bool,
    ) -> dict[str, Tensor]:
        """Every unit's features on every rank; with sharded weights they are there already."""
        kept = [[part for part in of_rank if part.unit.key not in failed] for of_rank in parts]
        mine = [own[part] for part in kept[self.group.rank]]
        if is_sharded:
            return {part.unit.key: self._land([(part, rows)]) for part, rows in zip(kept[0], mine, strict=True)}
        counts = [sum(part.num_tokens for part in of_rank) for of_rank in kept]
        empty = torch.empty(0, self.shape.feature_size, dtype=self.dtype, device=self.device)
        gathered = self.group.gather_rows(torch.cat([empty, *mine]), counts)
        flat = [part for of_rank in kept for part in of_rank]
        by_unit: dict[str, list[tuple[_Part, Tensor]]] = {}
        for part, rows in zip(flat, gathered.split([part.num_tokens for part in flat]), strict=True):
            by_unit.setdefault(part.unit.key, []).append((part, rows))
        return {key: self._land(found) for key, found in by_unit.items()}

    def _land(self, found: Sequence[tuple[_Part, Tensor]]) -> Tensor:
        """A unit's features from its parts, in the order of its tokens, in storage of exactly their size."""
        in_cut_order = [rows for _, rows in sorted(found, key=lambda pair: pair[0].share.start)]
        if not self.shape.window_blocks:
            return torch.cat(in_cut_order)
        rows = in_cut_order[0] if len(found) == 1 else torch.cat(in_cut_order)
        return rows[torch.from_numpy(self._layout(found[0][0].unit).inverse).to(self.device)]


def _parts_by_rank(plan: VisionPlan, num_ranks: int) -> list[list[_Part]]:
    """What each rank computes: its rows of cut units, which wait for others, and then its whole units."""
    parts: list[list[_Part]] = [[] for _ in range(num_ranks)]
    for assignment in sorted(plan.assignments, key=lambda assignment: not assignment.is_cut):
        unit = assignment.unit
        for share in assignment.shares:
            parts[share.rank].append(_Part(unit, share, assignment.is_cut))
        if not assignment.shares:
            for rank, of_rank in enumerate(parts):
                of_rank.append(_Part(unit, Share(rank, 0, unit.num_rows), is_cut=False))
    return parts

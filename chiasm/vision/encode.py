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
        received_bytes: what came from other ranks within the tower and with the features.
    """

    features: dict[str, Tensor]
    failed: frozenset[str]
    seconds: tuple[float, ...]
    makespan: float
    received_bytes: int


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
        return self.unit.num_tokens * self.share.num_rows // self.unit.num_patches


_Pixels = dict[_Part, Tensor]


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
        start = time.perf_counter()
        parts = _parts_by_rank(plan, self.group.size)
        pixels = self._load(parts[self.group.rank])
        is_sharded = not all(assignment.shares for assignment in plan.assignments)
        cut = [assignment for assignment in plan.assignments if assignment.is_cut]
        lost: frozenset[str] = frozenset()
        if is_sharded or cut:
            lost, _ = self._agree(plan, parts, pixels, 0.0)
        num_bytes = 0
        if is_sharded:
            own = self._encode_sharded({part: rows for part, rows in pixels.items() if part.unit.key not in lost})
        elif cut:
            own, num_bytes = self._encode_with_cuts([a for a in cut if a.unit.key not in lost], pixels)
        else:
            own = self._encode_apart(pixels)
        failed, seconds = self._agree(plan, parts, own, self._seconds_since(start))
        if is_sharded:
            features = {part.unit.key: self._land([(part, own[part])]) for part in own if part.unit.key not in failed}
        else:
            features = self._gather(parts, own, failed)
            num_bytes += sum(rows.nbytes for rows in features.values()) - sum(rows.nbytes for rows in own.values())
        return EncodedUnits(features, failed, seconds, self._seconds_since(start), num_bytes)

    def _load(self, parts: Sequence[_Part]) -> _Pixels:
        """This rank's rows, in cut order; a unit whose pixels can't be read is left out."""
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

    def _encode_sharded(self, pixels: _Pixels) -> dict[_Part, Tensor]:
        """Sharded weights: every rank takes part in every unit; what to leave out has been agreed on.

        A rank that fails within the tower's own exchanges can't be waited for: it takes the engine with it.
        """
        return self._encode_packed(pixels) if pixels else {}

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

    def _encode_with_cuts(self, cut: Sequence[Assignment], pixels: _Pixels) -> tuple[dict[_Part, Tensor], int]:
        """One pass over all rows of this rank, in step with the others; and the bytes received in it."""
        kept = {assignment.unit.key for assignment in cut}
        shared = {part: rows for part, rows in pixels.items() if part.is_cut and part.unit.key in kept}
        whole = {part: rows for part, rows in pixels.items() if not part.is_cut}
        shape = self.shape
        exchange = RowExchange(
            cut,
            self.group,
            num_heads=shape.num_heads,
            head_dim=shape.hidden_size // shape.num_heads,
            num_layers=shape.num_full_attention_layers,
        )
        try:
            return self._encode_packed(shared | whole, exchange), exchange.num_bytes
        except Exception as error:  # as above; the others still wait for this rank's rows
            _log.error("a pass with cut units failed: %s", error)
            exchange.give_up(torch.empty(0, dtype=self.dtype, device=self.device))
            return self._encode_apart(whole), exchange.num_bytes

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
        self, plan: VisionPlan, parts: Sequence[Sequence[_Part]], succeeded: Iterable[_Part], seconds: float
    ) -> tuple[frozenset[str], tuple[float, ...]]:
        """Tell the others which of this rank's units failed, and how long it took.

        One small sum: a flag for each unit, set by a rank that should have rows of it and has not, and a slot for
        each rank's time.
        """
        group = self.group
        missing = {part.unit.key for part in parts[group.rank]} - {part.unit.key for part in succeeded}
        flags = [float(unit.key in missing) for unit in plan.units]
        times = [seconds if rank == group.rank else 0.0 for rank in range(group.size)]
        agreed = group.all_reduce(torch.tensor(flags + times, dtype=torch.float64, device=self.device)).tolist()
        failed = frozenset(unit.key for unit, flag in zip(plan.units, agreed, strict=False) if flag > 0)
        return failed, tuple(agreed[len(flags) :])

    def _gather(
        self, parts: Sequence[Sequence[_Part]], own: dict[_Part, Tensor], failed: frozenset[str]
    ) -> dict[str, Tensor]:
        """Every unit's features on every rank."""
        kept = [[part for part in of_rank if part.unit.key not in failed] for of_rank in parts]
        mine = [own[part] for part in kept[self.group.rank]]
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
                of_rank.append(_Part(unit, Share(rank, 0, unit.num_patches), is_cut=False))
    return parts

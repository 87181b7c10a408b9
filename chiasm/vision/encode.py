"""Encoding one step's units on the ranks: load, agree, encode, agree, gather.

Every rank runs this with the same plan. A rank may fail in what it does alone (reading pixels, encoding its own
units); it then says so in the agreement before the next exchange, so that the units are lost and nothing else is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chiasm.dist.group import Group
from chiasm.logs import get_logger
from chiasm.schema.media import PixelRef, Unit
from chiasm.schema.plan import VisionPlan

_log = get_logger(__name__)

Encoder = Callable[[Tensor, Sequence[tuple[int, int]]], Tensor]
"""A tower: (uint8 rows [patches, row_bytes], grids of the units packed in them) -> features [tokens, hidden]."""

RowReader = Callable[[PixelRef], npt.NDArray[np.uint8]]
"""Gives [num_rows, row_bytes]; raises RuntimeError if they are gone."""


@dataclass(frozen=True)
class EncodedUnits:
    """What a step's encoding gave.

    Attributes:
        features: unit key -> [tokens, hidden], each tensor owning storage of exactly its size; on every rank.
        failed: keys of units that could not be encoded; the same on every rank.
        seconds: time that each rank spent on its own part; with sharded weights, where the ranks work in step, each
            rank takes its own time for everybody's.
    """

    features: dict[str, Tensor]
    failed: frozenset[str]
    seconds: tuple[float, ...]


@dataclass(frozen=True)
class UnitEncoder:
    """Encodes the units of a plan on this rank and shares the results.

    Attributes:
        encoder: the tower.
        hidden_size: columns of its features.
        group: the ranks that the plan speaks of.
        read_rows: reads rows of pixels.
        device: where the tower is.
        dtype: of the features.
        packs_units: whether a rank encodes its units at once. It fills a GPU; on a CPU it gains nothing, and there
            the last bits of a matrix product can depend on its number of rows. Apart, a unit's features are the same
            wherever it is placed.
    """

    encoder: Encoder
    hidden_size: int
    group: Group
    read_rows: RowReader
    device: torch.device
    dtype: torch.dtype
    packs_units: bool

    def encode(self, plan: VisionPlan) -> EncodedUnits:
        """Encode a plan's units; every rank of the group calls it with the same plan."""
        start = time.perf_counter()
        rows = self._load(self._own_units(plan))
        if not plan.owners:
            return self._encode_together(plan, rows, start)
        own = self._encode_alone(rows)
        failed, seconds = self._agree(plan, own, self._seconds_since(start))
        return EncodedUnits(self._gather(plan, own, failed), failed, seconds)

    def _own_units(self, plan: VisionPlan) -> list[Unit]:
        """The units whose pixels this rank needs."""
        if not plan.owners:
            return list(plan.units)
        return [unit for unit, owner in zip(plan.units, plan.owners, strict=True) if owner == self.group.rank]

    def _load(self, units: Sequence[Unit]) -> dict[Unit, Tensor]:
        loaded: dict[Unit, Tensor] = {}
        for unit in units:
            try:
                loaded[unit] = torch.from_numpy(self.read_rows(unit.pixels))
            except Exception as error:  # whatever it is, the others must hear that the unit is lost
                _log.error("unit %s: its pixels can't be read: %s", unit.key[:12], error)
        return loaded

    def _encode_together(self, plan: VisionPlan, rows: dict[Unit, Tensor], start: float) -> EncodedUnits:
        """Sharded weights: every rank takes part in every unit, so what to leave out is agreed on first.

        A rank that fails later, within the tower's own exchanges, can't be waited for: it takes the engine with it.
        """
        failed, _ = self._agree(plan, {unit.key for unit in rows}, 0.0)
        units = [unit for unit in plan.units if unit.key not in failed]
        features = self._encode_packed({unit: rows[unit] for unit in units}) if units else {}
        return EncodedUnits(features, failed, (self._seconds_since(start),) * self.group.size)

    def _seconds_since(self, start: float) -> float:
        """Time until the device has done what it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - start

    def _encode_alone(self, rows: dict[Unit, Tensor]) -> dict[str, Tensor]:
        """Replicated weights: this rank's units; one that fails is left out."""
        if self.packs_units and len(rows) > 1:
            try:
                return self._encode_packed(rows)
            except RuntimeError as error:  # torch's own kind, out-of-memory among it
                _log.warning("encoding %d units at once failed, now one by one: %s", len(rows), error)
        features: dict[str, Tensor] = {}
        for unit, pixels in rows.items():
            try:
                features |= self._encode_packed({unit: pixels})
            except Exception as error:  # as above
                _log.error("unit %s can't be encoded: %s", unit.key[:12], error)
        return features

    def _encode_packed(self, rows: dict[Unit, Tensor]) -> dict[str, Tensor]:
        pixels = torch.cat(list(rows.values())).to(self.device, non_blocking=True)
        packed = self.encoder(pixels, [unit.grid for unit in rows])
        return _split(packed, list(rows))

    def _agree(
        self, plan: VisionPlan, succeeded: dict[str, Tensor] | set[str], seconds: float
    ) -> tuple[frozenset[str], tuple[float, ...]]:
        """Tell the others which of this rank's units failed, and how long it took.

        One small sum: a flag for each unit, set by a rank that should have it and has not, and a slot for each
        rank's time.
        """
        group = self.group
        own = {unit.key for unit in self._own_units(plan)}
        flags = [float(unit.key in own and unit.key not in succeeded) for unit in plan.units]
        times = [seconds if rank == group.rank else 0.0 for rank in range(group.size)]
        agreed = group.all_reduce(torch.tensor(flags + times, dtype=torch.float64, device=self.device)).tolist()
        failed = frozenset(unit.key for unit, flag in zip(plan.units, agreed, strict=False) if flag > 0)
        return failed, tuple(agreed[len(plan.units) :])

    def _gather(self, plan: VisionPlan, own: dict[str, Tensor], failed: frozenset[str]) -> dict[str, Tensor]:
        """Every rank's features on every rank."""
        by_owner = sorted(zip(plan.owners, plan.units, strict=True), key=lambda pair: pair[0])
        kept = [(owner, unit) for owner, unit in by_owner if unit.key not in failed]
        if self.group.size == 1 or not kept:
            return own
        counts = [0] * self.group.size
        for owner, unit in kept:
            counts[owner] += unit.num_tokens
        mine = [own[unit.key] for owner, unit in kept if owner == self.group.rank]
        empty = torch.empty(0, self.hidden_size, dtype=self.dtype, device=self.device)
        gathered = self.group.gather_rows(torch.cat(mine) if mine else empty, counts)
        return _split(gathered, [unit for _, unit in kept])


def _split(packed: Tensor, units: Sequence[Unit]) -> dict[str, Tensor]:
    """Features by unit; copied, so that a cached unit does not keep its neighbours' storage alive."""
    if len(units) == 1 and packed.untyped_storage().nbytes() == packed.nbytes:
        return {units[0].key: packed}
    parts = packed.split([unit.num_tokens for unit in units])
    return {unit.key: part.clone() for unit, part in zip(units, parts, strict=True)}

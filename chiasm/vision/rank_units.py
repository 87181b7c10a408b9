"""A rank's share of a plan on its way through the tower, and what becomes of it when a pass fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, TypeAlias

from torch import Tensor

from chiasm.logs import get_logger
from chiasm.ops.segments import SharedRows
from chiasm.schema.media import Unit
from chiasm.schema.plan import Share, VisionPlan
from chiasm.vision.exchange import RowExchange
from chiasm.vision.stages import StagedPass, Stages
from chiasm.vision.units import Piece

_log = get_logger(__name__)


class RankPart(NamedTuple):
    """Rows of a unit on a rank; all of them where the encoder's weights are sharded."""

    unit: Unit
    share: Share
    is_cut: bool

    @property
    def piece(self) -> Piece:
        """As the tower sees it."""
        return Piece(self.unit.grid, self.share.start, self.share.stop)

    @property
    def num_tokens(self) -> int:
        """Rows of features that it gives."""
        return self.unit.num_tokens * self.share.num_rows // self.unit.num_rows


Pixels: TypeAlias = dict[RankPart, Tensor]
"""uint8 [rows, bytes of a patch] of each part, in cut order."""

PassMaker: TypeAlias = Callable[[Pixels, SharedRows | None], Stages]
"""Begins one pass over all of some pixels."""


def parts_by_rank(plan: VisionPlan, num_ranks: int) -> list[list[RankPart]]:
    """What each rank computes: its rows of cut units, which wait for others, and then its whole units."""
    parts: list[list[RankPart]] = [[] for _ in range(num_ranks)]
    for assignment in sorted(plan.assignments, key=lambda assignment: not assignment.is_cut):
        unit = assignment.unit
        for share in assignment.shares:
            parts[share.rank].append(RankPart(unit, share, assignment.is_cut))
        if not assignment.shares:
            for rank, of_rank in enumerate(parts):
                of_rank.append(RankPart(unit, Share(rank, 0, unit.num_rows), is_cut=False))
    return parts


class RankUnits:
    """A rank's parts of a plan, in one pass through the tower or in one for each.

    Passes that are apart go on side by side, a stage of the plan being a stage of each: so every stage takes about
    the same time, however the sizes of units differ.

    Args:
        make_pass: of the tower.
        pixels: of the parts.
        exchange: how ranks share the cut ones; None if there are none. Then, and only then, all is one pass.
        is_sharded: whether all ranks compute a part of everything. A rank that fails within the tower's own
            exchanges can't be waited for: it takes the engine with it.
        packs_units: whether whole units are one pass too.
    """

    def __init__(
        self,
        make_pass: PassMaker,
        pixels: Pixels,
        exchange: RowExchange | None,
        *,
        is_sharded: bool,
        packs_units: bool,
    ) -> None:
        self._make_pass = make_pass
        self._pixels = pixels
        self._exchange = exchange
        self._is_sharded = is_sharded
        self._has_given_up = False
        if exchange is not None or (pixels and (is_sharded or packs_units)):
            self._passes = [self._pass(pixels)]
        else:
            self._passes = self._passes_apart(pixels)

    @property
    def parts(self) -> list[RankPart]:
        """Those that are not lost."""
        return [part for one in self._passes for part in one.parts]

    def features(self) -> dict[RankPart, Tensor]:
        """Of each part that is not lost, in cut order; all stages are done."""
        return {part: rows for one in self._passes for part, rows in one.features()}

    def advance(self, num_stages: int) -> None:
        """Compute until so many stages are done; what fails is left out."""
        if self._exchange is not None and self._has_given_up:
            self._exchange.give_up(num_stages)
        for one in list(self._passes):
            try:
                one.stages.advance(num_stages)
            except Exception as error:  # whatever it is, the others must hear that the unit is lost
                if self._is_sharded:
                    raise
                error.__traceback__ = None  # its frames hold the memory of the pass
                self._passes.remove(one)
                self._save(one, error, num_stages)

    def _save(self, failed: _Pass, error: Exception, num_stages: int) -> None:
        """Have the others go on, and try the whole units of a pass again, one by one."""
        if self._exchange is not None and not self._has_given_up:
            _log.error("a pass with cut units failed: %s", error)
            self._has_given_up = True
            self._exchange.give_up(num_stages)  # the others still wait for this rank's rows
        elif len(failed.parts) > 1:
            _log.warning("encoding %d units at once failed, now one by one: %s", len(failed.parts), error)
        else:
            _log.error("unit %s can't be encoded: %s", failed.parts[0].unit.key[:12], error)
            return
        self._passes = self._passes_apart(part for part in failed.parts if not part.is_cut)
        self.advance(num_stages)

    def _passes_apart(self, parts: Iterable[RankPart]) -> list[_Pass]:
        return [self._pass({part: self._pixels[part]}) for part in parts]

    def _pass(self, pixels: Pixels) -> _Pass:
        shared = None if self._has_given_up else self._exchange
        return _Pass(tuple(pixels), StagedPass(self._make_pass(pixels, shared)))


class _Pass(NamedTuple):
    """Parts that go through the tower together."""

    parts: Sequence[RankPart]
    stages: StagedPass

    def features(self) -> Iterable[tuple[RankPart, Tensor]]:
        assert self.stages.features is not None
        rows = self.stages.features.split([part.num_tokens for part in self.parts])
        return zip(self.parts, rows, strict=True)

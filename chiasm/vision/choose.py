"""The search for the placement with the smallest predicted makespan. Pure and deterministic, no torch.

Candidates are few and cheap to price: k large units cut over all ranks, the rest whole, or whole as far as they fit
below the even load and what is left over laid end to end (a ribbon) into the gaps. Rows are rounded to allowed
borders only in the one that is taken.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heapreplace
from typing import NamedTuple

from chiasm.schema.media import Unit
from chiasm.schema.plan import Exchange, Share
from chiasm.vision.cost import CostModel, PlanCost, RankLoad, RowShare, UnitWork, add_whole
from chiasm.vision.units import nearest_border, uncut_runs

LEAST_GAIN = 0.01
"""What further cuts must win, as a part of the makespan; with less than that to win the search ends."""

_MOST_WIDE_BESIDE_RIBBON = 7
_MOST_WORK = 3000  # bounds the search by units and ranks looked at, so that it takes a few milliseconds


class Placed(NamedTuple):
    """Where one unit goes: one share where it is whole."""

    shares: tuple[Share, ...]
    exchange: Exchange = "none"


class Placement(NamedTuple):
    """Where every unit goes, and what that is predicted to take."""

    placed: dict[int, Placed]
    cost: PlanCost


class _Cut(NamedTuple):
    """Units cut alike: ``parts`` are (rank, its part of the rows)."""

    indices: tuple[int, ...]
    parts: tuple[tuple[int, float], ...]
    exchange: Exchange


@dataclass
class _Draft:
    """A placement in the making, and what it gives to the ranks."""

    owned: list[tuple[int, int]]
    cuts: list[_Cut]
    loads: list[RankLoad]

    def copy(self) -> _Draft:
        return _Draft(list(self.owned), list(self.cuts), [replace(load) for load in self.loads])

    def seconds(self) -> list[float]:
        """Work of each rank."""
        return [load.linear + load.whole_attention + load.cut_attention for load in self.loads]

    @property
    def num_cuts(self) -> int:
        """Units that are cut."""
        return sum(len(cut.indices) for cut in self.cuts)


class PlacementSearch:
    """Finds a placement of given units."""

    def __init__(self, units: Sequence[Unit], model: CostModel) -> None:
        self.units = units
        self.model = model
        self.works = [model.work(unit) for unit in units]
        self.seconds = [work.seconds for work in self.works]
        self.order = sorted(range(len(units)), key=lambda index: (-self.seconds[index], index))
        self.level = sum(self.seconds) / model.num_ranks
        self._whole: dict[tuple[int, int], Placed] = {}

    def whole(self, first: Sequence[tuple[int, int]] = ()) -> Placement:
        """Whole units, the costliest first, after those that are ``first`` given to a rank as (unit, rank)."""
        return self._settle(self._only_whole(first))

    def _only_whole(self, first: Sequence[tuple[int, int]] = ()) -> _Draft:
        draft = _Draft([], [], self.model.new_loads())
        self._give(draft, first)
        taken = {index for index, _ in first}
        pass_seconds = 0.0 if self.model.rates.packs_units else self.model.rates.seconds_per_pass
        self._pack(draft, [index for index in self.order if index not in taken], pass_seconds=pass_seconds)
        return draft

    def best(self) -> Placement:
        """The smallest makespan; on near ties the fewest cuts."""
        best = whole = self._only_whole()
        cost = whole_cost = self.model.price_loads(whole.loads)
        floor = self.level + cost.gather_seconds
        for draft in self._with_cuts():
            if cost.makespan <= (1 + LEAST_GAIN) * floor:
                break
            candidate = self.model.price_loads(draft.loads)
            least = LEAST_GAIN * cost.makespan if draft.num_cuts > best.num_cuts else 0.0
            if cost.makespan - candidate.makespan > least:
                best, cost = draft, candidate
        settled = self._settle(best)
        if best is not whole and settled.cost.makespan >= whole_cost.makespan:  # rounding ate the gain
            return self._settle(whole)
        return settled

    def _with_cuts(self) -> Iterator[_Draft]:
        """Placements with cuts, those with few first; the more units there are, the fewer are looked at."""
        num_units = len(self.units)
        tries = _MOST_WORK // (num_units + 8 * self.model.num_ranks)
        if not self.model.shape.can_cut_rows:
            return
        for num_wide in range(min(_MOST_WIDE_BESIDE_RIBBON, num_units, tries - 1) + 1):
            yield from self._cut_wide(self._fitted(self.order[num_wide:]), self.order[:num_wide])
        if tries <= _MOST_WIDE_BESIDE_RIBBON:
            return
        enough = self._enough_wide()
        for num_wide in range(max(1, enough - 2), enough + 1):
            yield from self._cut_wide(self._all_whole(self.order[num_wide:]), self.order[:num_wide])

    def _enough_wide(self) -> int:
        """How many of the largest units must be cut over all ranks so that the others, whole, fit below the rest."""
        return bisect_left(range(len(self.units)), True, key=self._is_wide_enough)

    def _is_wide_enough(self, num_wide: int) -> bool:
        heap = [0.0] * self.model.num_ranks
        for index in self.order[num_wide:]:
            heapreplace(heap, heap[0] + self.seconds[index])
        return max(heap) <= self.level

    def _all_whole(self, indices: Sequence[int]) -> _Draft:
        draft = _Draft([], [], self.model.new_loads())
        self._pack(draft, indices)
        return draft

    def _fitted(self, indices: Sequence[int]) -> _Draft:
        """Whole units as far as they fit below the even load, the rest as a ribbon in the gaps."""
        draft = _Draft([], [], self.model.new_loads())
        self._add_ribbon(draft, self._pack(draft, indices, room=self.level))
        return draft

    def _pack(
        self, draft: _Draft, indices: Sequence[int], *, room: float = math.inf, pass_seconds: float = 0.0
    ) -> list[int]:
        """Give each unit to the rank with the least work so far; ties go to the lower rank.

        Args:
            draft: gets the units.
            indices: the units.
            room: a unit that would bring its rank above it is left.
            pass_seconds: of each unit, where each is a pass of its own.

        Returns:
            What is left.
        """
        so_far = (
            work + load.num_whole * pass_seconds for work, load in zip(draft.seconds(), draft.loads, strict=True)
        )
        heap = sorted((seconds, rank) for rank, seconds in enumerate(so_far))
        owned, left = [], []
        for index in indices:
            load, rank = heap[0]
            after = load + self.seconds[index] + pass_seconds
            if after <= room:
                owned.append((index, rank))
                heapreplace(heap, (after, rank))
            else:
                left.append(index)
        self._give(draft, owned)
        return left

    def _give(self, draft: _Draft, owned: Iterable[tuple[int, int]]) -> None:
        """Add whole units as (unit, rank)."""
        for index, rank in owned:
            draft.owned.append((index, rank))
            add_whole(draft.loads[rank], self.works[index])

    def _add_ribbon(self, draft: _Draft, indices: Sequence[int]) -> None:
        """Lay units end to end and cut them so that the ranks with the least work get what they lack."""
        gaps = fill_up(draft.seconds(), sum(self.seconds[index] for index in indices))
        ranks = sorted(range(len(gaps)), key=lambda rank: (-gaps[rank], rank))
        position = 0
        gap = gaps[ranks[0]]
        for index in indices:
            parts = []
            need = self.seconds[index]
            while need > gap and position + 1 < len(ranks):
                parts.append((ranks[position], gap / self.seconds[index]))
                need -= gap
                position += 1
                gap = gaps[ranks[position]]
            parts.append((ranks[position], need / self.seconds[index]))
            gap -= need
            self._add_cut(draft, [index], parts, "all-gather")

    def _cut_wide(self, draft: _Draft, indices: Sequence[int]) -> Iterator[_Draft]:
        """Also cut these units over all ranks, with less for a rank that has more already; by each exchange."""
        if not indices:
            yield draft
            return
        works = [self.works[index] for index in indices]
        amount = sum(work.seconds for work in works)
        by_gather = draft.copy()
        self._add_cut(by_gather, indices, _parts(fill_up(draft.seconds(), amount)), "all-gather")
        yield by_gather
        least = max(self._least_part(index) for index in indices)
        num_ranks = self.model.num_ranks
        if self.model.shape.num_heads % num_ranks == 0 and least * num_ranks <= 1:
            # The ranks' attention is the same whatever their rows, but each must have some.
            amount = sum(work.linear for work in works)
            gaps = [max(gap, least * amount) for gap in fill_up(draft.seconds(), amount)]
            self._add_cut(draft, indices, _parts(gaps), "all-to-all")
            yield draft

    def _least_part(self, index: int) -> float:
        """The smallest part of a unit that surely does not round to nothing."""
        unit, shape = self.units[index], self.model.shape
        longest = uncut_runs(unit.grid, shape.merge_size, shape.window_blocks)[0].length
        return 1.01 * longest / unit.num_patches

    def _add_cut(
        self, draft: _Draft, indices: Sequence[int], parts: Sequence[tuple[int, float]], exchange: Exchange
    ) -> None:
        """Cut units alike, which for the cost is one unit of all their rows."""
        parts = [(rank, part) for rank, part in parts if part > 0]
        if len(parts) == 1:
            self._give(draft, ((index, parts[0][0]) for index in indices))
            return
        draft.cuts.append(_Cut(tuple(indices), tuple(parts), exchange))
        work = _joined(self.works[index] for index in indices)
        shares = [RowShare(rank, part * work.num_patches) for rank, part in parts]
        self.model.add_cut(draft.loads, work, shares, exchange)

    def _settle(self, draft: _Draft) -> Placement:
        """Round rows to allowed borders, and price what comes out."""
        placed = {index: self._whole_on(rank, index) for index, rank in draft.owned}
        if not draft.cuts:
            return Placement(placed, self.model.price_loads(draft.loads))
        for cut in draft.cuts:
            for index in cut.indices:
                placed[index] = self._rounded(self.units[index], cut)
        loads = self.model.new_loads()
        for index, place in placed.items():
            self.model.add(loads, self.works[index], place.shares, place.exchange)
        return Placement(placed, self.model.price_loads(loads))

    def _whole_on(self, rank: int, index: int) -> Placed:
        """The place of a whole unit; one value for all that are alike, of which there can be many."""
        num_rows = self.works[index].num_patches
        place = self._whole.get((rank, num_rows))
        if place is None:
            place = self._whole[rank, num_rows] = Placed((Share(rank, 0, num_rows),))
        return place

    def _rounded(self, unit: Unit, cut: _Cut) -> Placed:
        """Shares between allowed borders; a rank whose part rounds to nothing gets none."""
        shape = self.model.shape
        shares = []
        start, done = 0, 0.0
        for rank, part in cut.parts:
            done += part
            row = unit.num_patches * done
            stop = nearest_border(unit.grid, shape.merge_size, shape.window_blocks, row)
            if stop > start:
                shares.append(Share(rank, start, stop))
                start = stop
        assert start == unit.num_patches
        exchange: Exchange = cut.exchange
        if len(shares) == 1:
            exchange = "none"
        elif shape.num_heads % len(shares):
            exchange = "all-gather"
        return Placed(tuple(shares), exchange)


def _parts(amounts: Sequence[float]) -> list[tuple[int, float]]:
    """(rank, its part of the whole)."""
    total = sum(amounts)
    return [(rank, amount / total) for rank, amount in enumerate(amounts)]


def _joined(works: Iterable[UnitWork]) -> UnitWork:
    """Units as if they were one; exact for what is linear in the parts of each, as pricing a cut is."""
    return UnitWork(*map(sum, zip(*works, strict=True)))


def fill_up(loads: Sequence[float], amount: float) -> list[float]:
    """What each load gets of ``amount`` so that the smallest loads become equal."""
    ascending = sorted(loads)
    below = 0.0
    level = ascending[0]
    for count, load in enumerate(ascending, start=1):
        below += load
        level = (below + amount) / count
        if count == len(ascending) or level <= ascending[count]:
            break
    return [max(0.0, level - load) for load in loads]

"""The search for the placement with the smallest predicted makespan. Pure and deterministic, no torch.

Candidates are few and cheap to price: k large units cut over all ranks, the rest whole, or whole as far as they fit
below the even load and what is left over laid end to end (a ribbon) into the gaps. Rows are rounded to allowed
borders before a candidate is priced, so that what is compared is what would be run.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from heapq import heapreplace
from typing import NamedTuple

from chiasm.schema.media import Unit
from chiasm.schema.plan import Exchange, Share
from chiasm.vision.cost import CostModel, PlanCost, RankLoad, UnitWork, add_whole, joined
from chiasm.vision.units import RowRun, nearest_border, uncut_runs

LEAST_GAIN = 0.01
"""What further cuts must win, as a part of the makespan; with less than that to win the search ends."""

_MOST_WIDE_BESIDE_RIBBON = 7
_MOST_WORK = 3000  # bounds the search by units and ranks looked at, so that it takes a few milliseconds


class Placed(NamedTuple):
    """Where one unit goes: one share where it is whole."""

    shares: tuple[Share, ...]
    exchange: Exchange = "none"


class Placement(NamedTuple):
    """Where every unit goes, and what that is predicted to take.

    Attributes:
        placed: by the unit's index.
        cost: of all of it.
        why_whole: why nothing is cut, where it might have been; one of a few clauses, "" if something is.
    """

    placed: dict[int, Placed]
    cost: PlanCost
    why_whole: str = ""


class _Cut(NamedTuple):
    """Units of one grid, cut alike."""

    indices: Sequence[int]
    place: Placed


@dataclass
class _Draft:
    """A placement in the making: whole units by rank, cut units, and what each rank is given by both."""

    owned: list[list[int]]
    cuts: list[_Cut]
    loads: list[RankLoad]

    def copy(self) -> _Draft:
        return _Draft(list(map(copy, self.owned)), list(self.cuts), list(map(copy, self.loads)))

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
        self.seconds = [work.linear + work.attention for work in self.works]
        self.order = sorted(range(len(units)), key=self.seconds.__getitem__, reverse=True)  # stable all the same
        self.level = sum(self.seconds) / model.num_ranks
        self._whole: dict[tuple[int, int], Placed] = {}

    def whole(self, first: Sequence[tuple[int, int]] = ()) -> Placement:
        """Whole units, the costliest first, after those that are ``first`` given to a rank as (unit, rank)."""
        draft = self._only_whole(first)
        return Placement(self._placed(draft), self.model.price_loads(draft.loads))

    def _only_whole(self, first: Sequence[tuple[int, int]] = ()) -> _Draft:
        draft = self._empty()
        for index, rank in first:
            self._give(draft, rank, [index])
        taken = {index for index, _ in first}
        pass_seconds = 0.0 if self.model.rates.packs_units else self.model.rates.seconds_per_pass
        self._pack(draft, [index for index in self.order if index not in taken], pass_seconds=pass_seconds)
        return draft

    def best(self) -> Placement:
        """The smallest makespan; on near ties the fewest cuts."""
        best = self._only_whole()
        cost = self.model.price_loads(best.loads)
        enough = (1 + LEAST_GAIN) * self.model.least_seconds(self.works)
        why_whole = self._why_uncuttable()
        if not why_whole and cost.makespan <= enough:
            why_whole = "as cutting one would gain less than 1 %"
        if not why_whole:
            best, cost = self._improved(best, cost, enough)
            why_whole = "" if best.cuts else "as no cut that was tried gains 1 %"
        return Placement(self._placed(best), cost, why_whole)

    def _improved(self, best: _Draft, cost: PlanCost, enough: float) -> tuple[_Draft, PlanCost]:
        """A better draft than ``best``, if there is one; a makespan of ``enough`` ends the search."""
        for draft in self._with_cuts():
            candidate = self.model.price_loads(draft.loads)
            least = LEAST_GAIN * cost.makespan if draft.num_cuts > best.num_cuts else 0.0
            if cost.makespan - candidate.makespan > least:
                best, cost = draft, candidate
            if cost.makespan <= enough:
                break
        return best, cost

    def _why_uncuttable(self) -> str:
        """Why none of the units can be cut; "" if one can."""
        if not self.model.shape.can_cut_rows:
            return "as this tower's can't be cut"
        if all(sum(run.num_stretches for run in self._runs(unit)) == 1 for unit in self.units):
            return "as none has a border to be cut at"
        return ""

    def _with_cuts(self) -> Iterator[_Draft]:
        """Placements with cuts, those with few first; the more units there are, the fewer are looked at."""
        num_units = len(self.units)
        tries = _MOST_WORK // (num_units + 8 * self.model.num_ranks)
        for num_wide in range(min(_MOST_WIDE_BESIDE_RIBBON, num_units, max(1, tries - 1)) + 1):
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

    def _empty(self) -> _Draft:
        return _Draft([[] for _ in range(self.model.num_ranks)], [], self.model.new_loads())

    def _all_whole(self, indices: Sequence[int]) -> _Draft:
        draft = self._empty()
        self._pack(draft, indices)
        return draft

    def _fitted(self, indices: Sequence[int]) -> _Draft:
        """Whole units as far as they fit below the even load, the rest as a ribbon in the gaps."""
        draft = self._empty()
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
        owned: list[list[int]] = [[] for _ in heap]
        left = []
        for index in indices:
            load, rank = heap[0]
            after = load + self.seconds[index] + pass_seconds
            if after <= room:
                owned[rank].append(index)
                heapreplace(heap, (after, rank))
            else:
                left.append(index)
        for rank, of_rank in enumerate(owned):
            self._give(draft, rank, of_rank)
        return left

    def _give(self, draft: _Draft, rank: int, indices: Sequence[int]) -> None:
        """Add whole units to a rank."""
        if indices:
            draft.owned[rank] += indices
            add_whole(draft.loads[rank], self._joined(indices), len(indices))

    def _joined(self, indices: Sequence[int]) -> UnitWork:
        return joined([self.works[index] for index in indices])

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
        by_gather = draft.copy()
        amount = sum(work.seconds for work in works)
        self._add_cut(by_gather, indices, _parts(fill_up(draft.seconds(), amount)), "all-gather")
        yield by_gather
        # In an all-to-all the ranks' attention is the same whatever their rows, but each must have some.
        least = max(self._least_part(index) for index in indices)
        num_ranks = self.model.num_ranks
        if self.model.shape.num_heads % num_ranks == 0 and least * num_ranks < 1:
            amount = sum(work.linear for work in works)
            self._add_cut(draft, indices, _parts(fill_up(draft.seconds(), amount), least), "all-to-all")
            yield draft

    def _least_part(self, index: int) -> float:
        """The smallest part of a unit that surely does not round to nothing."""
        unit = self.units[index]
        return 1.01 * self._runs(unit)[0].length / unit.num_rows

    def _runs(self, unit: Unit) -> tuple[RowRun, ...]:
        shape = self.model.shape
        return uncut_runs(unit.grid, shape.merge_size, shape.window_blocks, unit.num_extra)

    def _add_cut(
        self, draft: _Draft, indices: Sequence[int], parts: Sequence[tuple[int, float]], exchange: Exchange
    ) -> None:
        """Cut units over the same ranks, near the same ``parts``; those that are too small for that stay whole."""
        by_grid: dict[tuple[int, int], list[int]] = {}
        for index in indices:
            by_grid.setdefault(self.units[index].grid, []).append(index)
        for alike in by_grid.values():
            place = self._rounded(self.units[alike[0]], parts, exchange)
            if len(place.shares) == 1:
                self._give(draft, place.shares[0].rank, alike)
                continue
            draft.cuts.append(_Cut(alike, place))
            self.model.add_cut(draft.loads, self._joined(alike), place.shares, place.exchange, len(alike))

    def _rounded(self, unit: Unit, parts: Sequence[tuple[int, float]], exchange: Exchange) -> Placed:
        """Shares between allowed borders; a rank whose part rounds to nothing gets none."""
        shape = self.model.shape
        num_rows = unit.num_rows
        shares = []
        start, done = 0, 0.0
        for rank, part in parts:
            done += part
            row = num_rows * done
            stop = nearest_border(unit.grid, shape.merge_size, shape.window_blocks, row, unit.num_extra)
            if stop > start:
                shares.append(Share(rank, start, stop))
                start = stop
        assert start == num_rows
        if len(shares) == 1:
            exchange = "none"
        elif shape.num_heads % len(shares):
            exchange = "all-gather"
        return Placed(tuple(shares), exchange)

    def _placed(self, draft: _Draft) -> dict[int, Placed]:
        placed = {index: cut.place for cut in draft.cuts for index in cut.indices}
        for rank, indices in enumerate(draft.owned):
            for index in indices:
                placed[index] = self._whole_on(rank, index)
        return placed

    def _whole_on(self, rank: int, index: int) -> Placed:
        """The place of a whole unit; one value for all that are alike, of which there can be many."""
        num_rows = self.works[index].num_rows
        place = self._whole.get((rank, num_rows))
        if place is None:
            place = self._whole[rank, num_rows] = Placed((Share(rank, 0, num_rows),))
        return place


def _parts(amounts: Sequence[float], least: float = 0.0) -> list[tuple[int, float]]:
    """(rank, its part of the whole), where every part is at ``least`` so much, of which there is room for all."""
    total = sum(amounts)
    spare = [max(0.0, amount / total - least) for amount in amounts]
    scale = (1 - least * len(amounts)) / sum(spare)
    return [(rank, least + scale * part) for rank, part in enumerate(spare)]


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

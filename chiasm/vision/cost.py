"""What a plan costs: seconds of computing and exchanging on each rank, from shapes and rates. Pure, no torch.

Letters: N rows of a unit (patches, and in some towers more), r of them on one rank, d the tower's width, m ranks that
share the unit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

from chiasm.schema.facts import EncoderRates, EncoderShape
from chiasm.schema.media import Unit
from chiasm.schema.plan import Assignment, Exchange, Share

_MOST_SIZES = 4096  # of units, whose work is remembered


def linear_flops(shape: EncoderShape, num_rows: int) -> int:
    """Floating-point operations of a unit that are linear in its rows.

    Per layer and row the projections of query, key, value and output take ``8 d d``, the MLP ``2 matrices d ff``, and
    attention within windows ``4 w d`` for the w rows of one.
    """
    d = shape.hidden_size
    dense = 8 * d * d + 2 * shape.mlp_matrices * d * shape.intermediate_size
    windows = (shape.num_layers - shape.num_full_attention_layers) * 4 * d * min(num_rows, shape.window_patches)
    return num_rows * (shape.num_layers * dense + windows + shape.outer_flops)


def full_attention_flops(shape: EncoderShape, num_rows: int) -> int:
    """Floating-point operations of a unit's attention in the layers where it spans all N rows: ``4 N N d`` each."""
    return shape.num_full_attention_layers * 4 * shape.hidden_size * num_rows**2


class UnitWork(NamedTuple):
    """A unit as the cost model sees it.

    Attributes:
        num_rows: N.
        num_tokens: rows of features that it gives.
        linear: seconds of what is linear in the rows, for all of them; window attention is among it.
        attention: seconds of full attention, for all rows.
    """

    num_rows: int
    num_tokens: int
    linear: float
    attention: float

    @property
    def seconds(self) -> float:
        """All of it on one rank."""
        return self.linear + self.attention


class PlanCost(NamedTuple):
    """What a plan is predicted to take.

    Attributes:
        compute_seconds: of each rank.
        exchange_seconds: of each rank, for the units that are cut, as far as local work does not hide it; with
            sharded weights, for the sums.
        done_seconds: when each rank is through with its rows; with a cut, all wait for one another.
        exchanged_bytes: received by each rank, the gathered features among them.
        cut_bytes: of these, what it receives within layers for the units that are cut.
        gather_seconds: agreeing on failures, and putting all features on all ranks after the slowest rank is done.
        makespan: seconds from the start to the last feature on every rank.
    """

    compute_seconds: tuple[float, ...]
    exchange_seconds: tuple[float, ...]
    done_seconds: tuple[float, ...]
    exchanged_bytes: tuple[int, ...]
    cut_bytes: tuple[int, ...]
    gather_seconds: float
    makespan: float


@dataclass(slots=True)
class RankLoad:
    """What a plan gives to one rank.

    Attributes:
        num_whole: whole units.
        num_tokens: feature rows that it computes.
        linear: seconds of linear work.
        whole_attention: seconds of full attention within whole units, which needs nobody.
        cut_attention: seconds of full attention in units that it shares.
        num_rounds: exchanges in a layer with full attention: 0 without shares, 2 with any all-to-all, else 1.
        first_elements: received in the first of them, in one layer.
        second_elements: received in the second.
    """

    num_whole: int = 0
    num_tokens: float = 0.0
    linear: float = 0.0
    whole_attention: float = 0.0
    cut_attention: float = 0.0
    num_rounds: int = 0
    first_elements: float = 0.0
    second_elements: float = 0.0


@dataclass(frozen=True)
class CostModel:
    """Predicts plans of a tower on ranks that are all alike.

    Attributes:
        shape: of the tower.
        rates: of a rank and its link.
        num_ranks: ranks of the encoder's group.
    """

    shape: EncoderShape
    rates: EncoderRates
    num_ranks: int

    def work(self, unit: Unit) -> UnitWork:
        """A unit's work."""
        return self._work_of_size(unit.num_rows, unit.num_tokens)

    @cached_property
    def _work_of_size(self) -> Callable[[int, int], UnitWork]:
        """Remembers sizes, which come again and again, but not without bound."""

        @lru_cache(maxsize=_MOST_SIZES)
        def work_of_size(num_rows: int, num_tokens: int) -> UnitWork:
            rates = self.rates
            return UnitWork(
                num_rows,
                num_tokens,
                linear=linear_flops(self.shape, num_rows) * rates.seconds_per_flop,
                attention=full_attention_flops(self.shape, num_rows) * rates.seconds_per_attention_flop,
            )

        return work_of_size

    def alone_seconds(self, works: Sequence[UnitWork]) -> float:
        """Whole units on one rank, which exchanges nothing."""
        num_passes = 1 if self.rates.packs_units else len(works)
        return sum(work.seconds for work in works) + num_passes * self.rates.seconds_per_pass

    def stages_share(self, works: Sequence[UnitWork], start: int, stop: int) -> float:
        """The part of the time of some passes that their stages ``start`` to ``stop`` take.

        What is outside the layers, about a layer's work, is counted as if it were spread over all stages.
        """
        work, shape = joined(works), self.shape
        linear = work.linear * (stop - start) / shape.num_stages
        num_full = shape.num_exchanging(stop) - shape.num_exchanging(start)
        attention = work.attention * num_full / max(1, shape.num_full_attention_layers)
        return (linear + attention) / work.seconds

    def least_seconds(self, works: Sequence[UnitWork]) -> float:
        """What no placement goes below: all ranks are given the same, in at most one pass, and exchange no rows."""
        work, m = joined(works), self.num_ranks
        even = RankLoad(num_tokens=work.num_tokens / m, linear=work.linear / m, whole_attention=work.attention / m)
        return self.price_loads([even] * m).makespan

    def price(self, assignments: Sequence[Assignment]) -> PlanCost:
        """The cost of a plan; one without shares is priced as sharded weights."""
        if any(not assignment.shares for assignment in assignments):
            return self.price_sharded_weights([self.work(assignment.unit) for assignment in assignments])
        loads = self.new_loads()
        for one in assignments:
            self.add(loads, self.work(one.unit), one.shares, one.exchange)
        return self.price_loads(loads)

    def new_loads(self) -> list[RankLoad]:
        """Ranks with nothing to do."""
        return [RankLoad() for _ in range(self.num_ranks)]

    def add(self, loads: Sequence[RankLoad], work: UnitWork, shares: Sequence[Share], exchange: Exchange) -> None:
        """Give a unit to the ranks that have shares of it."""
        if len(shares) == 1:
            add_whole(loads[shares[0].rank], work)
        else:
            self.add_cut(loads, work, shares, exchange)

    def add_cut(
        self,
        loads: Sequence[RankLoad],
        work: UnitWork,
        shares: Sequence[Share],
        exchange: Exchange,
        num_units: int = 1,
    ) -> None:
        """Give a unit to several ranks, or several that are alike and cut alike, as their joint work.

        All-gather: a rank receives key and value of the rows that it has not, and attends with its own rows.
        All-to-all: first it receives its part of the heads, query, key and value, of the rows that it has not, and
        attends with all rows in these heads; then the results of the other heads for its own rows.
        """
        n, d, m = work.num_rows, self.shape.hidden_size, len(shares)
        for share in shares:
            load, rows = loads[share.rank], (share.stop - share.start) * num_units
            load.linear += work.linear * rows / n
            load.num_tokens += rows * work.num_tokens / n
            if exchange == "all-gather":
                load.cut_attention += work.attention * rows / n
                load.first_elements += 2 * d * (n - rows)
                load.num_rounds = max(load.num_rounds, 1)
            else:
                load.cut_attention += work.attention / m
                load.first_elements += 3 * (d // m) * (n - rows)
                load.second_elements += (d - d // m) * rows
                load.num_rounds = 2

    def price_loads(self, loads: Sequence[RankLoad]) -> PlanCost:
        """The cost of what each rank was given."""
        compute = self._compute_seconds(loads)
        waits = [self._exchange_seconds(load) for load in loads]
        hidden = [min(wait[0], self._local_seconds(load)) for wait, load in zip(waits, loads, strict=True)]
        done = self._done_seconds(loads, compute, waits)
        received = self._gathered_bytes(loads)
        gather = self._end_seconds(received, any(load.num_rounds for load in loads))
        cut = [self._cut_bytes(load) for load in loads]
        return PlanCost(
            compute_seconds=tuple(compute),
            exchange_seconds=tuple(sum(wait) - less for wait, less in zip(waits, hidden, strict=True)),
            done_seconds=done,
            exchanged_bytes=tuple(round(a + b) for a, b in zip(cut, received, strict=True)),
            cut_bytes=tuple(map(round, cut)),
            gather_seconds=gather,
            makespan=max(done) + gather,
        )

    def _compute_seconds(self, loads: Sequence[RankLoad]) -> list[float]:
        """Of each rank. In a plan with a cut a rank computes all its rows in one pass through the tower."""
        is_one_pass = self.rates.packs_units or any(load.num_rounds for load in loads)
        seconds = []
        for load in loads:
            num_passes = bool(load.num_tokens) if is_one_pass else load.num_whole
            work = load.linear + load.whole_attention + load.cut_attention
            seconds.append(work + num_passes * self.rates.seconds_per_pass)
        return seconds

    def _exchange_seconds(self, load: RankLoad) -> tuple[float, float]:
        """Of the first and the second round of a rank, over all layers."""
        rates, layers = self.rates, self.shape.num_full_attention_layers
        per_element = rates.bytes_per_element * rates.seconds_per_byte
        first = load.first_elements * per_element + (load.num_rounds > 0) * rates.seconds_per_exchange
        second = load.second_elements * per_element + (load.num_rounds > 1) * rates.seconds_per_exchange
        return layers * first, layers * second

    def _local_seconds(self, load: RankLoad) -> float:
        """Work that needs nobody and can be done while the first round is under way."""
        return load.whole_attention if self.rates.can_overlap else 0.0

    def _done_seconds(
        self, loads: Sequence[RankLoad], compute: Sequence[float], waits: Sequence[tuple[float, float]]
    ) -> tuple[float, ...]:
        """When each rank is done: if a unit is cut, all wait for one another in every layer with full attention.

        An exchange is a collective of all ranks, which is the faster one on gloo and lets any of them share a unit. A
        layer goes on when the last rank has sent and the last message has come; what a rank does for itself meanwhile
        counts only where it takes longer than that.
        """
        if not any(load.num_rounds for load in loads):
            return tuple(compute)
        first, second = (max(wait[turn] for wait in waits) for turn in (0, 1))
        sent = max(own - self._local_seconds(load) for own, load in zip(compute, loads, strict=True))
        return (max(sent + first, *compute) + second,) * len(loads)

    def _cut_bytes(self, load: RankLoad) -> float:
        """Received by a rank in all layers."""
        elements = load.first_elements + load.second_elements
        return elements * self.shape.num_full_attention_layers * self.rates.bytes_per_element

    def _gathered_bytes(self, loads: Sequence[RankLoad]) -> list[float]:
        """The features of the others, for each rank."""
        total = sum(load.num_tokens for load in loads)
        row_bytes = self.shape.feature_size * self.rates.bytes_per_element
        return [(total - load.num_tokens) * row_bytes for load in loads]

    def _end_seconds(self, received: Sequence[float], is_cut: bool) -> float:
        """One round for the features, and a small one to agree on failures; before exchanges they agree as well.

        However many ranks own features, ``Group.gather_rows`` is one collective.
        """
        if self.num_ranks == 1:
            return 0.0
        num_rounds = 3 if is_cut else 2
        return num_rounds * self.rates.seconds_per_exchange + max(received) * self.rates.seconds_per_byte

    def price_sharded_weights(self, works: Sequence[UnitWork]) -> PlanCost:
        """Every rank computes its heads, and its columns of the MLP, of every row, and the ranks sum up.

        All units are one pass, wherever: the ranks go through it together.
        """
        m, rates = self.num_ranks, self.rates
        compute = sum(work.seconds for work in works) / m + rates.seconds_per_pass
        if m == 1:
            return PlanCost((compute,), (0.0,), (compute,), (0,), (0,), 0.0, compute)
        received = self._summed_elements(works) * 2 * (m - 1) // m * rates.bytes_per_element
        exchange = (2 * self.shape.num_layers + 1) * rates.seconds_per_exchange + received * rates.seconds_per_byte
        agree = 2 * rates.seconds_per_exchange
        done = compute + exchange
        return PlanCost(
            compute_seconds=(compute,) * m,
            exchange_seconds=(exchange,) * m,
            done_seconds=(done,) * m,
            exchanged_bytes=(received,) * m,
            cut_bytes=(0,) * m,
            gather_seconds=agree,
            makespan=done + agree,
        )

    def _summed_elements(self, works: Iterable[UnitWork]) -> int:
        """Two sums a layer over all rows, and one of the features; a ring moves each element 2 (m - 1) / m times."""
        shape = self.shape
        each_row = 2 * shape.num_layers * shape.hidden_size
        return sum(work.num_rows * each_row + work.num_tokens * shape.feature_size for work in works)


def add_whole(load: RankLoad, work: UnitWork, num_units: int = 1) -> None:
    """Give a whole unit to a rank, or several as their joint work."""
    load.num_whole += num_units
    load.num_tokens += work.num_tokens
    load.linear += work.linear
    load.whole_attention += work.attention


def joined(works: Sequence[UnitWork]) -> UnitWork:
    """Units as if they were one; exact for what is linear in the parts of each, as pricing a cut is."""
    return UnitWork(*map(sum, zip(*works, strict=True)))

"""What ranks that share units exchange in a layer with full attention, and the attention over it.

Two exact ways, chosen by the plan for each unit. *all-gather*: every rank gets the keys and values of all rows, and
attends with its own. *all-to-all*: every rank gets all rows of its share of the heads, attends with these, and sends
the results back to the rows' owners. Both are one collective per round over all ranks and all units, with uneven
splits, so that a rank without rows takes part by sending and receiving nothing.

Shapes: r rows of a rank and N of a whole unit, H heads, h = H / ranks of a unit, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from chiasm.dist.group import Group, PendingExchange
from chiasm.ops.attention import attend_all
from chiasm.schema.plan import Assignment
from chiasm.vision.timeline import Timeline

_Round = Literal["rows", "heads"]


class _SharedUnit(NamedTuple):
    """A cut unit.

    Attributes:
        ranks: those that hold rows of it, in the order of the rows.
        num_rows: of each of these ranks.
        swaps_heads: whether it is exchanged by all-to-all.
    """

    ranks: tuple[int, ...]
    num_rows: tuple[int, ...]
    swaps_heads: bool

    @classmethod
    def of(cls, assignment: Assignment) -> _SharedUnit:
        shares = assignment.shares
        return cls(
            tuple(share.rank for share in shares),
            tuple(share.num_rows for share in shares),
            assignment.exchange == "all-to-all",
        )

    def rows_of(self, rank: int) -> int:
        """Rows that ``rank`` holds."""
        return self.num_rows[self.ranks.index(rank)] if rank in self.ranks else 0

    def message_size(self, turn: _Round, source: int, target: int, num_heads: int) -> int:
        """Heads of rows that ``source`` sends to ``target``, keys and values counted each."""
        if source == target or source not in self.ranks or target not in self.ranks:
            return 0
        heads = num_heads // len(self.ranks)
        if turn == "heads":
            return heads * self.rows_of(target) if self.swaps_heads else 0
        return (3 * heads if self.swaps_heads else 2 * num_heads) * self.rows_of(source)

    def heads_of(self, rank: int, num_heads: int) -> slice:
        """The heads that ``rank`` attends with."""
        heads = num_heads // len(self.ranks)
        index = self.ranks.index(rank)
        return slice(index * heads, (index + 1) * heads)


class RowExchange:
    """The exchanges of one pass through a tower; a ``SharedRows`` for the attention op.

    Args:
        cut: the cut units of the pass, all of them on every rank.
        group: the ranks.
        num_heads: H.
        head_dim: D.
        num_layers: layers with full attention, that is calls of ``begin``.
        timeline: where waiting is noted.
    """

    def __init__(
        self,
        cut: Iterable[Assignment],
        group: Group,
        *,
        num_heads: int,
        head_dim: int,
        num_layers: int,
        timeline: Timeline,
    ) -> None:
        self._units = [_SharedUnit.of(assignment) for assignment in cut]
        self._group = group
        self._num_heads = num_heads
        self._head_dim = head_dim
        self._timeline = timeline
        turns: tuple[_Round, ...] = ("rows", "heads") if any(u.swaps_heads for u in self._units) else ("rows",)
        self._turns = list(turns * num_layers)[::-1]
        self._pending: PendingExchange | None = None
        self.own = [unit for unit in self._units if group.rank in unit.ranks]
        self.num_bytes = 0

    @property
    def num_rows(self) -> int:
        """Rows of cut units on this rank."""
        return sum(unit.rows_of(self._group.rank) for unit in self.own)

    def begin(self, q: Tensor, k: Tensor, v: Tensor) -> _PendingRows:
        """Start the exchange of a layer; q, k and v are [num_rows, H, D], unit after unit."""
        lengths = [unit.rows_of(self._group.rank) for unit in self.own]
        parts = list(zip(*(rows.split(lengths) for rows in (q, k, v)), strict=True))

        def message(index: int, unit: _SharedUnit, target: int) -> Iterable[Tensor]:
            own_q, own_k, own_v = parts[index]
            if not unit.swaps_heads:
                return (own_k, own_v)
            heads = unit.heads_of(target, self._num_heads)
            return (own_q[:, heads], own_k[:, heads], own_v[:, heads])

        self.post(q, message)
        return _PendingRows(self, parts, q)

    def post(self, like: Tensor, message: Callable[[int, _SharedUnit, int], Iterable[Tensor]]) -> None:
        """Start the next round with ``message(index of own unit, unit, target)`` for every other rank of a unit."""
        pieces = [like.new_empty(0)]
        for target in range(self._group.size):
            for index, unit in enumerate(self.own):
                if target in unit.ranks and target != self._group.rank:
                    pieces += [tensor.reshape(-1) for tensor in message(index, unit, target)]
        self._start(torch.cat(pieces))

    def wait(self) -> list[dict[int, Tensor]]:
        """End the round; for each own unit what each other rank of it has sent, flat."""
        assert self._pending is not None
        with self._timeline.span("exchange"):
            pieces = self._pending.wait()
        self._pending = None
        rank = self._group.rank
        received: list[dict[int, Tensor]] = [{} for _ in self.own]
        for source, piece in enumerate(pieces):
            sizes = [self._size(unit, self._turn, source, rank) for unit in self.own]
            for index, part in enumerate(piece.split(sizes)):
                if sizes[index]:
                    received[index][source] = part
        return received

    def heads_of(self, unit: _SharedUnit, rank: int) -> slice:
        """The heads of a unit that ``rank`` attends with."""
        return unit.heads_of(rank, self._num_heads)

    @property
    def rank(self) -> int:
        """This rank."""
        return self._group.rank

    @property
    def swaps_heads(self) -> bool:
        """Whether a layer has a second round."""
        return any(unit.swaps_heads for unit in self._units)

    def give_up(self, like: Tensor) -> None:
        """Send zeros for all rounds that are left.

        Called on a rank whose pass has failed, so that the others are not kept waiting; they learn of it after.
        """
        if self._pending is not None:
            self._pending.wait()
        while self._turns:
            self._start(like.new_zeros(sum(self._sizes(self._turns[-1], is_sending=True))))
            assert self._pending is not None
            self._pending.wait()

    def _start(self, outgoing: Tensor) -> None:
        turn = self._turns[-1]
        sending, receiving = (self._sizes(turn, is_sending=flag) for flag in (True, False))
        # It may fail for want of memory to receive into; the round is over with only once it has begun.
        self._pending = self._group.start_all_to_all(outgoing, sending, receiving)
        self._turn = self._turns.pop()
        self.num_bytes += sum(receiving) * outgoing.itemsize

    def _sizes(self, turn: _Round, *, is_sending: bool) -> list[int]:
        """Elements to, or from, every rank."""
        own, sizes = self._group.rank, []
        for other in range(self._group.size):
            source, target = (own, other) if is_sending else (other, own)
            sizes.append(sum(self._size(unit, turn, source, target) for unit in self._units))
        return sizes

    def _size(self, unit: _SharedUnit, turn: _Round, source: int, target: int) -> int:
        return unit.message_size(turn, source, target, self._num_heads) * self._head_dim


class _PendingRows:
    """Attention of cut units whose first round is under way; a ``PendingAttention``.

    Args:
        exchange: of the pass.
        parts: q, k and v of this rank's rows, [r, H, D] each, for each own unit.
        like: any tensor of the same kind.
    """

    def __init__(self, exchange: RowExchange, parts: Sequence[tuple[Tensor, ...]], like: Tensor) -> None:
        self._exchange = exchange
        self._parts = parts
        self._like = like

    def finish(self, scale: float) -> Tensor:
        """[num_rows, H, D]."""
        exchange = self._exchange
        received = exchange.wait()
        attended = []
        for unit, own, others in zip(exchange.own, self._parts, received, strict=True):
            attend = self._attend_heads if unit.swaps_heads else self._attend_rows
            attended.append(attend(unit, own, others, scale))
        if exchange.swaps_heads:
            attended = self._swap_back(attended)
        return torch.cat([self._like[:0], *attended])

    def _attend_rows(
        self, unit: _SharedUnit, own: tuple[Tensor, ...], received: dict[int, Tensor], scale: float
    ) -> Tensor:
        """Own queries over all rows: [r, H, D]."""
        q, *own_kv = own
        shape = q.shape[1:]
        by_rank = {rank: part.view(2, -1, *shape) for rank, part in received.items()}
        k, v = (
            torch.cat([own_kv[which] if rank == self._exchange.rank else by_rank[rank][which] for rank in unit.ranks])
            for which in (0, 1)
        )
        return attend_all(q, k, v, scale)

    def _attend_heads(
        self, unit: _SharedUnit, own: tuple[Tensor, ...], received: dict[int, Tensor], scale: float
    ) -> Tensor:
        """All queries over all rows, with some of the heads: [N, h, D]."""
        heads = self._exchange.heads_of(unit, self._exchange.rank)
        shape = (heads.stop - heads.start, own[0].shape[2])
        by_rank = {rank: part.view(3, -1, *shape) for rank, part in received.items()}
        q, k, v = (
            torch.cat([own[i][:, heads] if rank == self._exchange.rank else by_rank[rank][i] for rank in unit.ranks])
            for i in range(3)
        )
        return attend_all(q, k, v, scale)

    def _swap_back(self, attended: list[Tensor]) -> list[Tensor]:
        """Give the rows back to their owners; what was exchanged the other way is left as it is."""
        exchange = self._exchange

        def rows_for(index: int, unit: _SharedUnit, target: int) -> Iterable[Tensor]:
            if not unit.swaps_heads:
                return ()
            return (attended[index].split(unit.num_rows)[unit.ranks.index(target)],)

        exchange.post(self._like, rows_for)
        own_rows = [
            attended[index].split(unit.num_rows)[unit.ranks.index(exchange.rank)] if unit.swaps_heads else rows
            for index, (unit, rows) in enumerate(zip(exchange.own, attended, strict=True))
        ]
        received = exchange.wait()
        return [
            _join_heads(unit, rows, parts, exchange.rank) if unit.swaps_heads else rows
            for unit, rows, parts in zip(exchange.own, own_rows, received, strict=True)
        ]


def _join_heads(unit: _SharedUnit, own: Tensor, received: dict[int, Tensor], own_rank: int) -> Tensor:
    """[r, h, D] of each rank of the unit -> [r, H, D]."""
    by_rank = {rank: part.view(own.shape) for rank, part in received.items()}
    return torch.cat([own if rank == own_rank else by_rank[rank] for rank in unit.ranks], dim=1)

"""A unit that several ranks share: what each sends to the others for a layer of full attention, and what it computes.

Two exact ways. *By rows* (all-gather): every rank gets the keys and values of all rows, and attends with its own.
*By heads* (all-to-all): every rank gets all rows of its share of the heads, attends with these, and gives the results
back to the rows' owners in a second round.

Shapes: r rows of a rank and N of the unit, m ranks, H heads, h = H / m, D head size.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from chiasm.ops.attention import attend_unit
from chiasm.schema.plan import Assignment

Round = Literal["first", "second"]


class Heads(NamedTuple):
    """Queries, keys and values of a rank's rows, [r, H, D] each."""

    q: Tensor
    k: Tensor
    v: Tensor


Received = Mapping[int, Tensor]
"""What each other rank of a unit has sent in a round, flat."""


class SharedUnit(ABC):
    """One cut unit, as one of its ranks or any other sees it.

    Attributes:
        ranks: those that hold rows of it, in the order of the rows.
        rank: this one.
        num_heads: H.
        has_second_round: whether results travel back.
    """

    has_second_round: bool

    def __init__(self, assignment: Assignment, rank: int, num_heads: int) -> None:
        self.ranks = [share.rank for share in assignment.shares]
        self.rank = rank
        self.num_heads = num_heads
        self._num_rows = {share.rank: share.num_rows for share in assignment.shares}
        self._num_padding = assignment.unit.num_padding

    @property
    def num_rows(self) -> int:
        """Rows that this rank holds."""
        return self._num_rows.get(self.rank, 0)

    @property
    def others(self) -> list[int]:
        """The ranks that this one exchanges with; none if it holds no rows."""
        return [rank for rank in self.ranks if rank != self.rank] if self.num_rows else []

    def message_size(self, turn: Round, source: int, target: int) -> int:
        """Vectors of D elements that ``source`` sends to ``target``."""
        if source == target or source not in self._num_rows or target not in self._num_rows:
            return 0
        return self._message_size(turn, source, target)

    @abstractmethod
    def _message_size(self, turn: Round, source: int, target: int) -> int:
        """The same for two different ranks of the unit."""

    @abstractmethod
    def first_message(self, own: Heads, target: int) -> Tensor:
        """What a rank sends, of any shape; it is flattened."""

    @abstractmethod
    def attend(self, own: Heads, received: Received, scale: float) -> Tensor:
        """Attention with what came: all that is needed, or what is to be given back."""

    def second_message(self, attended: Tensor, target: int) -> Tensor:
        """What a rank gives back."""
        del target
        return attended[:0]

    def finish(self, attended: Tensor, received: Received) -> Tensor:
        """[r, H, D], with what came back."""
        del received
        return attended

    def _first_row(self, rank: int) -> int:
        """Of those that a rank holds, in the unit."""
        return sum(self._num_rows[before] for before in self.ranks[: self.ranks.index(rank)])

    def _join(self, own: Tensor, received: Received, shape: tuple[int, ...], dim: int) -> Tensor:
        """Tensors of all ranks along ``dim``, in the order of the rows; ``shape`` is that of those received."""
        parts = [own if rank == self.rank else received[rank].view(shape) for rank in self.ranks]
        return torch.cat(parts, dim=dim)


class SharedByRows(SharedUnit):
    """Keys and values travel."""

    has_second_round = False

    def _message_size(self, turn: Round, source: int, target: int) -> int:
        del target  # every rank gets the same
        return 2 * self.num_heads * self._num_rows[source] if turn == "first" else 0

    def first_message(self, own: Heads, target: int) -> Tensor:
        """[2, r, H, D]."""
        del target
        return torch.stack((own.k, own.v))

    def attend(self, own: Heads, received: Received, scale: float) -> Tensor:
        """Own queries over all rows: [r, H, D]."""
        mine = torch.stack((own.k, own.v))
        keys, values = self._join(mine, received, (2, -1, *own.k.shape[1:]), dim=1)
        first = self._first_row(self.rank)
        return attend_unit(own.q, keys, values, scale, first_row=first, num_padding=self._num_padding)


class SharedByHeads(SharedUnit):
    """Rows are swapped for heads, and back."""

    has_second_round = True

    @property
    def _heads_each(self) -> int:
        return self.num_heads // len(self.ranks)

    def _heads_of(self, rank: int) -> slice:
        start = self.ranks.index(rank) * self._heads_each
        return slice(start, start + self._heads_each)

    def _message_size(self, turn: Round, source: int, target: int) -> int:
        heads = self._heads_each
        return 3 * heads * self._num_rows[source] if turn == "first" else heads * self._num_rows[target]

    def first_message(self, own: Heads, target: int) -> Tensor:
        """[3, r, h, D], the target's heads."""
        heads = self._heads_of(target)
        return torch.stack((own.q[:, heads], own.k[:, heads], own.v[:, heads]))

    def attend(self, own: Heads, received: Received, scale: float) -> Tensor:
        """All queries over all rows, with this rank's heads: [N, h, D]."""
        mine = self.first_message(own, self.rank)
        queries, keys, values = self._join(mine, received, (3, -1, *mine.shape[2:]), dim=1)
        return attend_unit(queries, keys, values, scale, num_padding=self._num_padding)

    def second_message(self, attended: Tensor, target: int) -> Tensor:
        """[r of the target, h, D]."""
        start = self._first_row(target)
        return attended[start : start + self._num_rows[target]]

    def finish(self, attended: Tensor, received: Received) -> Tensor:
        """[r, H, D] from the heads of all ranks."""
        own = self.second_message(attended, self.rank)
        return self._join(own, received, tuple(own.shape), dim=1)


def shared_unit(assignment: Assignment, rank: int, num_heads: int) -> SharedUnit:
    """The cut unit of an assignment, for ``rank``."""
    kind = SharedByHeads if assignment.exchange == "all-to-all" else SharedByRows
    return kind(assignment, rank, num_heads)

"""What ranks that share units exchange in layers with full attention, and how one that fails keeps nobody waiting.

A round is one all-to-all with uneven splits over all ranks and all cut units of a pass, so that a rank without rows
takes part by sending and receiving nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from chiasm.dist.group import Group, PendingExchange
from chiasm.schema.facts import EncoderShape
from chiasm.schema.plan import Assignment
from chiasm.vision.shared_unit import Heads, Received, Round, SharedUnit, shared_unit
from chiasm.vision.timeline import Timeline


class RowExchange:
    """The exchanges of one pass through a tower; a ``SharedRows`` for the attention op.

    Args:
        cut: the cut units of the pass, all of them on every rank.
        group: the ranks.
        shape: of the tower; ``begin`` is called in each layer with full attention.
        like: any tensor of the kind that is exchanged.
        timeline: where waiting is noted.
    """

    def __init__(
        self, cut: Iterable[Assignment], group: Group, shape: EncoderShape, like: Tensor, timeline: Timeline
    ) -> None:
        units = [shared_unit(assignment, group.rank, shape.num_heads) for assignment in cut]
        self._own = [unit for unit in units if unit.num_rows]
        self._shape = shape
        self._like = like
        head_dim = shape.hidden_size // shape.num_heads
        self._rounds = _Rounds(units, group, head_dim, shape.num_full_attention_layers, timeline)

    @property
    def num_rows(self) -> int:
        """Rows of cut units on this rank."""
        return sum(unit.num_rows for unit in self._own)

    @property
    def num_bytes(self) -> int:
        """Received so far."""
        return self._rounds.num_bytes

    def begin(self, q: Tensor, k: Tensor, v: Tensor) -> _PendingRows:
        """Start the exchange of a layer; q, k and v are [num_rows, H, D], unit after unit."""
        lengths = [unit.num_rows for unit in self._own]
        parts = [Heads(*rows) for rows in zip(*(x.split(lengths) for x in (q, k, v)), strict=True)]
        messages = [
            {target: unit.first_message(part, target) for target in unit.others}
            for unit, part in zip(self._own, parts, strict=True)
        ]
        self._rounds.start(messages, like=q)
        return _PendingRows(self._own, self._rounds, parts, q)

    def give_up(self, num_stages: int) -> None:
        """Send zeros for all rounds that are left of so many stages.

        Called on a rank whose pass has failed, so that the others are not kept waiting; they learn of it after.
        """
        self._rounds.give_up(self._like, self._shape.num_exchanging(num_stages))


class _PendingRows:
    """Attention of cut units whose first round is under way; a ``PendingAttention``.

    Args:
        units: those that this rank has rows of.
        rounds: of the pass.
        parts: of each of them.
        like: any tensor [n, H, D] of the same kind.
    """

    def __init__(self, units: Sequence[SharedUnit], rounds: _Rounds, parts: Sequence[Heads], like: Tensor) -> None:
        self._units = units
        self._rounds = rounds
        self._parts = parts
        self._like = like

    def finish(self, scale: float) -> Tensor:
        """[num_rows, H, D]."""
        received = self._rounds.wait()
        attended = [
            unit.attend(part, others, scale)
            for unit, part, others in zip(self._units, self._parts, received, strict=True)
        ]
        if self._rounds.has_second:
            messages = [
                {target: unit.second_message(rows, target) for target in unit.others}
                for unit, rows in zip(self._units, attended, strict=True)
            ]
            self._rounds.start(messages, like=self._like)
            received = self._rounds.wait()
            attended = [
                unit.finish(rows, others) for unit, rows, others in zip(self._units, attended, received, strict=True)
            ]
        return torch.cat([self._like[:0], *attended])


class _Rounds:
    """The collectives of a pass, in the order in which every rank takes part in them.

    Attributes:
        has_second: whether a layer has two, because results of any unit travel back.
        num_bytes: received so far.
    """

    def __init__(
        self, units: Sequence[SharedUnit], group: Group, head_dim: int, num_layers: int, timeline: Timeline
    ) -> None:
        self.has_second = any(unit.has_second_round for unit in units)
        self.num_bytes = 0
        self._units = units
        self._own = [unit for unit in units if unit.num_rows]
        self._group = group
        self._head_dim = head_dim
        self._timeline = timeline
        turns: tuple[Round, ...] = ("first", "second") if self.has_second else ("first",)
        self._num_turns = len(turns)
        self._num_rounds = num_layers * len(turns)
        self._left = list(turns * num_layers)[::-1]
        self._turn: Round = "first"
        self._pending: PendingExchange | None = None

    def start(self, messages: Sequence[dict[int, Tensor]], like: Tensor) -> None:
        """Send ``messages``, for each own unit what each of its other ranks gets."""
        ranks = range(self._group.size)
        pieces = [by_target[rank].reshape(-1) for rank in ranks for by_target in messages if rank in by_target]
        self._post(torch.cat([like.new_empty(0), *pieces]))

    def wait(self) -> list[Received]:
        """End the round; for each own unit what each other rank of it has sent."""
        assert self._pending is not None
        with self._timeline.span("exchange"):
            pieces = self._pending.wait()
        self._pending = None
        received: list[dict[int, Tensor]] = [{} for _ in self._own]
        for source, piece in enumerate(pieces):
            sizes = [self._size(unit, self._turn, source, self._group.rank) for unit in self._own]
            for by_source, part in zip(received, piece.split(sizes), strict=True):
                by_source[source] = part
        return list(received)

    def give_up(self, like: Tensor, num_layers: int) -> None:
        """Take part in what is left of so many layers, with zeros."""
        if self._pending is not None:
            self._pending.wait()
        while self._num_rounds - len(self._left) < num_layers * self._num_turns:
            self._post(like.new_zeros(sum(self._sizes(self._left[-1], is_sending=True)))).wait()
        self._pending = None

    def _post(self, outgoing: Tensor) -> PendingExchange:
        turn = self._left[-1]
        sending, receiving = (self._sizes(turn, is_sending=flag) for flag in (True, False))
        # It may fail for want of memory to receive into; the round is over with only once it has begun.
        self._pending = pending = self._group.start_all_to_all(outgoing, sending, receiving)
        self._turn = self._left.pop()
        self.num_bytes += sum(receiving) * outgoing.itemsize
        return pending

    def _sizes(self, turn: Round, *, is_sending: bool) -> list[int]:
        """Elements to, or from, every rank."""
        own, sizes = self._group.rank, []
        for other in range(self._group.size):
            source, target = (own, other) if is_sending else (other, own)
            sizes.append(sum(self._size(unit, turn, source, target) for unit in self._units))
        return sizes

    def _size(self, unit: SharedUnit, turn: Round, source: int, target: int) -> int:
        return unit.message_size(turn, source, target) * self._head_dim

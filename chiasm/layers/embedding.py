"""Token embeddings and the output projection, sharded over the vocabulary.

Shapes: n tokens, d hidden size, V vocabulary, Vr rows of one rank: V / ranks, rounded up.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chiasm.dist.group import Group
from chiasm.layers.linear import PackedLayer, packed
from chiasm.layers.weight import Part, Piece, Placement, Weight
from chiasm.ops.matmul import is_worth_packing, linear


def _vocab_weight(vocab_size: int, hidden_size: int, placement: Placement) -> Weight:
    """[Vr, d]; the last ranks may hold rows beyond the vocabulary, which stay zero."""
    num_rows = _rows_per_rank(vocab_size, placement.group)
    start = min(vocab_size, placement.group.rank * num_rows)
    length = min(num_rows, vocab_size - start)
    part = Part((vocab_size, hidden_size), (Piece(start, length, 0),))
    weight = Weight((num_rows, hidden_size), {"": part}, placement.dtype, placement.device)
    weight.data[length:].zero_()
    return weight


def _rows_per_rank(vocab_size: int, group: Group) -> int:
    return -(-vocab_size // group.size)


class VocabEmbedding(nn.Module):
    """Token embeddings; every rank looks up its own part of the vocabulary and the ranks add up."""

    def __init__(self, vocab_size: int, hidden_size: int, placement: Placement) -> None:
        super().__init__()
        self.group = placement.group
        self.weight = _vocab_weight(vocab_size, hidden_size, placement)

    def forward(self, ids: Tensor) -> Tensor:
        """LongTensor [n] -> [n, d] on every rank."""
        if self.group.size == 1:
            return F.embedding(ids, self.weight)
        num_rows = self.weight.shape[0]
        local = ids - self.group.rank * num_rows
        is_elsewhere = (local < 0) | (local >= num_rows)
        rows = F.embedding(local.clamp(0, num_rows - 1), self.weight)
        return self.group.all_reduce(rows.masked_fill_(is_elsewhere[:, None], 0))


class OutputProjection(PackedLayer):
    """From hidden states to logits.

    ``tied`` is the embedding whose weight it shares; None gives it a weight of its own.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, placement: Placement, tied: VocabEmbedding | None = None
    ) -> None:
        super().__init__()
        self.group = placement.group
        self.vocab_size = vocab_size
        self.is_tied = tied is not None
        self.weight: nn.Parameter = tied.weight if tied else _vocab_weight(vocab_size, hidden_size, placement)

    def tie(self, embedding: VocabEmbedding) -> None:
        """Give up its own weight for that of ``embedding``."""
        self.is_tied, self.weight = True, embedding.weight

    def pack(self) -> None:
        """Pack the weight; the embeddings that it is tied to keep theirs as it is, since rows are looked up there."""
        self.weight = packed(self.weight)

    def copied_bytes(self, device: torch.device) -> int:
        """Of the packed matrix where the embeddings keep theirs."""
        return self.weight.nbytes if self.is_tied and is_worth_packing(self.weight, device) else 0

    def forward(self, hidden: Tensor) -> Tensor:
        """[m, d] -> float32 [m, V] on every rank."""
        logits = self.group.all_gather_last(linear(hidden, self.weight))
        return logits[:, : self.vocab_size].to(torch.float32)

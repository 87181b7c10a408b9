"""Causal attention over a key-value cache that is made of blocks.

Shapes: n rows of the packed batch, H query heads, Hkv key-value heads, D head size, G = H / Hkv.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from chiasm.ops.single_rows import MOST_KEYS, IntArray, SingleRow, SingleRows, can_attend_single_rows

# Query rows per attention call: rows of a tile see no key beyond its last row, so small tiles skip the upper
# triangle and bound the mask, and large ones make fewer calls.
_TILE_ROWS = 256


@dataclass(frozen=True)
class KVCache:
    """Keys and values of one layer, each [num_blocks, block_size, Hkv, D]."""

    keys: Tensor
    values: Tensor

    @classmethod
    def empty(
        cls,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> KVCache:
        """A cache whose content means nothing yet; it is written before it is read."""
        shape = (num_blocks, block_size, num_kv_heads, head_dim)
        return cls(torch.empty(shape, dtype=dtype, device=device), torch.empty(shape, dtype=dtype, device=device))

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return self.keys.shape[1]


@dataclass(frozen=True)
class SequenceSlice:
    """The rows of a packed batch that belong to one sequence.

    Attributes:
        start: its first row.
        stop: one past its last row.
        num_computed_tokens: position of its first row, that is the length of its history in the cache.
        blocks: its cache blocks in order; they reach at least to its last row.
        device: of the cache.
    """

    start: int
    stop: int
    num_computed_tokens: int
    blocks: IntArray
    device: torch.device

    @property
    def num_tokens(self) -> int:
        """Tokens that its last row attends to."""
        return self.num_computed_tokens + self.stop - self.start

    @cached_property
    def block_ids(self) -> Tensor:
        """LongTensor [blocks]; made when first asked for, and once for all layers."""
        return torch.from_numpy(self.blocks).to(self.device)

    @cached_property
    def first_block(self) -> int | None:
        """The first block where the blocks are consecutive, so that its cache is one view; else None."""
        return int(self.blocks[0]) if bool(np.all(np.diff(self.blocks) == 1)) else None


class PagedKernel(Protocol):
    """What the rows of one batch attend with, all in one call."""

    def attend(self, q: Tensor, cache: KVCache, scale: float, chunk_size: int | None) -> Tensor:
        """[n, H, D] -> [n, H, D]; see ``paged_attention``, by which new keys and values are in the cache already."""


@dataclass(frozen=True)
class PagedBatch:
    """A packed batch of sequences.

    Attributes:
        slices: they cover the rows, in order; empty where a kernel knows the sequences.
        slots: LongTensor [n], where each row's key and value go: block * block_size + offset.
        kernel: what the rows attend with; None goes through the slices one by one.
        singles: those of one row that can be gone through together.
        others: the other slices.
    """

    slices: tuple[SequenceSlice, ...]
    slots: Tensor
    kernel: PagedKernel | None = None
    singles: SingleRows | None = None
    others: tuple[SequenceSlice, ...] = ()


class SequenceRows(NamedTuple):
    """What a sequence brings to a batch, in plain numbers."""

    num_computed_tokens: int
    num_new_tokens: int
    block_ids: Sequence[int]


def build_batch(sequences: Sequence[SequenceRows], block_size: int, device: torch.device) -> PagedBatch:
    """Pack the new rows of these sequences, in order."""
    slices, others = [], []
    slots: list[int] = []
    singles: list[SingleRow] = []
    start = num_keys = 0
    for num_computed, num_new, block_ids in sequences:
        blocks = np.asarray(block_ids, dtype=np.int64)
        slices.append(SequenceSlice(start, start + num_new, num_computed, blocks, device))
        if num_new == 1:
            slots.append(block_ids[num_computed // block_size] * block_size + num_computed % block_size)
        else:
            positions = np.arange(num_computed, num_computed + num_new)
            slots += (blocks[positions // block_size] * block_size + positions % block_size).tolist()
        if num_new == 1 and num_keys + num_computed < MOST_KEYS:
            singles.append(SingleRow(start, num_computed, blocks))
            num_keys += num_computed + 1
        else:
            others.append(slices[-1])
        start += num_new
    together = SingleRows(singles, block_size, is_whole_batch=not others) if singles else None
    return PagedBatch(tuple(slices), torch.tensor(slots, device=device), None, together, tuple(others))


def paged_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cache: KVCache,
    batch: PagedBatch,
    scale: float,
    chunk_size: int | None = None,
) -> Tensor:
    """Put the new keys and values into the cache, then let each row attend to its sequence up to itself.

    Args:
        q: [n, H, D]; H is a multiple of Hkv and query head h reads key-value head h // G.
        k: [n, Hkv, D], new keys.
        v: [n, Hkv, D], new values.
        cache: written at ``batch.slots``.
        batch: describes the n rows.
        scale: factor of the scores.
        chunk_size: if given, positions are in chunks of so many, and a row attends, and reads the cache, no further
            back than to the start of its own.

    Returns:
        [n, H, D].
    """
    cache.keys.flatten(0, 1).index_copy_(0, batch.slots, k)
    cache.values.flatten(0, 1).index_copy_(0, batch.slots, v)
    if batch.kernel is not None:
        return batch.kernel.attend(q, cache, scale, chunk_size)
    out = q.new_empty(q.shape)
    slices = batch.slices
    if batch.singles is not None and can_attend_single_rows(q.device, q.dtype):
        batch.singles.attend(q, cache.keys, cache.values, scale, chunk_size, out)
        slices = batch.others
    for sequence in slices:
        for span in _spans(sequence, chunk_size):
            rows = slice(span.start, span.stop)
            if span.first_key >= sequence.num_computed_tokens:  # all that is attended to is new
                new = slice(sequence.start + span.first_key - sequence.num_computed_tokens, span.stop)
                keys, values = k[new], v[new]
            else:
                keys, values = (_read(blocks, sequence, span) for blocks in (cache.keys, cache.values))
            attend = _attend_one_row if span.stop - span.start == 1 else _attend_rows
            attend(q[rows], keys, values, scale, out[rows])
    return out


class _Span(NamedTuple):
    """Rows ``start`` to ``stop`` of the packed batch; their keys are at positions ``first_key`` to ``stop_key``."""

    start: int
    stop: int
    first_key: int
    stop_key: int


def _spans(sequence: SequenceSlice, chunk_size: int | None) -> Iterator[_Span]:
    """A sequence's rows, by chunk if there are any."""
    if chunk_size is None:
        yield _Span(sequence.start, sequence.stop, 0, sequence.num_tokens)
        return
    row, position = sequence.start, sequence.num_computed_tokens
    while row < sequence.stop:
        first = position - position % chunk_size
        length = min(first + chunk_size - position, sequence.stop - row)
        yield _Span(row, row + length, first, position + length)
        row, position = row + length, position + length


def _read(blocks: Tensor, sequence: SequenceSlice, span: _Span) -> Tensor:
    """[num_blocks, block_size, Hkv, D] -> [keys of the span, Hkv, D]; a view where a sequence's blocks allow."""
    block_size = blocks.shape[1]
    first, stop = span.first_key // block_size, -(-span.stop_key // block_size)
    if sequence.first_block is not None:
        own = blocks[sequence.first_block + first : sequence.first_block + stop]
    else:
        own = blocks.index_select(0, sequence.block_ids[first:stop])
    return own.flatten(0, 1)[span.first_key - first * block_size : span.stop_key - first * block_size]


def _attend_one_row(q: Tensor, k: Tensor, v: Tensor, scale: float, out: Tensor) -> None:
    """Fill ``out`` [1, H, D] from q [1, H, D] and k, v [num_tokens, Hkv, D]."""
    # The query heads of a group become rows over their one key-value head: no mask and no expanded keys, which on
    # the CPU takes less than half the time of SDPA's own enable_gqa.
    grouped = q.view(1, k.shape[1], -1, q.shape[2])
    keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    out.copy_(F.scaled_dot_product_attention(grouped, keys, values, scale=scale).reshape(out.shape))


def _attend_rows(q: Tensor, k: Tensor, v: Tensor, scale: float, out: Tensor) -> None:
    """Fill ``out`` [n, H, D] from q [n, H, D] and k, v [num_tokens, Hkv, D], whose last n rows are q's own."""
    num_rows, num_heads, head_dim = q.shape
    num_tokens, num_kv_heads, _ = k.shape
    group = num_heads // num_kv_heads
    grouped_shape = (num_rows, num_kv_heads, group, head_dim)
    queries = q.view(grouped_shape).permute(1, 2, 0, 3)  # [Hkv, G, n, D]
    filled = out.view(grouped_shape).permute(1, 2, 0, 3)
    keys = k.transpose(0, 1)[:, None].expand(-1, group, -1, -1)  # [Hkv, G, num_tokens, D]
    values = v.transpose(0, 1)[:, None].expand(-1, group, -1, -1)
    history = num_tokens - num_rows
    for first in range(0, num_rows, _TILE_ROWS):
        last = min(first + _TILE_ROWS, num_rows)
        seen = history + last
        mask = torch.ones(last - first, seen, dtype=torch.bool, device=q.device).tril_(history + first)
        filled[:, :, first:last] = F.scaled_dot_product_attention(
            queries[:, :, first:last], keys[:, :, :seen], values[:, :, :seen], attn_mask=mask, scale=scale
        )

"""Attention layers: causal over a cache, and bidirectional within segments.

Shapes: n rows of a packed batch, d hidden size, H query heads of this rank, D head size.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from chiasm.layers.linear import KeyValueLinear, QKVLinear, QueryLinear, RowParallelLinear
from chiasm.layers.norm import RMSNorm
from chiasm.layers.shards import HeadShard
from chiasm.layers.weight import Placement
from chiasm.ops.attention import attend_memory, segment_attention
from chiasm.ops.paged_attention import KVCache, PagedBatch, paged_attention
from chiasm.ops.rope import Rotation, rotate
from chiasm.ops.segments import Segments


class Memory(NamedTuple):
    """What neighbouring rows of a batch attend to.

    Attributes:
        num_queries: rows of the batch.
        keys: [rows, Hkv, D].
        values: [rows, Hkv, D].
    """

    num_queries: int
    keys: Tensor
    values: Tensor


def rows_of(x: Tensor, rows: Tensor | None) -> Tensor:
    """[n, d] and LongTensor [m] -> [m, d]; all for None."""
    return x if rows is None else x[rows]


class CausalAttention(nn.Module):
    """Attention of a language model over its paged cache.

    With ``qk_norm_eps`` each head of the queries and keys is normalised before it is rotated.
    """

    def __init__(
        self,
        hidden_size: int,
        heads: HeadShard,
        *,
        qkv_bias: bool,
        placement: Placement,
        qk_norm_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.scale = heads.head_dim**-0.5
        self.qkv_proj = QKVLinear(hidden_size, heads, bias=qkv_bias, placement=placement)
        width = heads.total_heads * heads.head_dim
        self.o_proj = RowParallelLinear(width, hidden_size, bias=False, placement=placement)
        self.q_norm: RMSNorm | None = None
        self.k_norm: RMSNorm | None = None
        if qk_norm_eps is not None:
            self.q_norm = RMSNorm(heads.head_dim, qk_norm_eps, placement)
            self.k_norm = RMSNorm(heads.head_dim, qk_norm_eps, placement)

    def forward(
        self, x: Tensor, rotation: Rotation, cache: KVCache, batch: PagedBatch, rows: Tensor | None = None
    ) -> Tensor:
        """[n, d] -> [n, d], or what ``rows`` of them give; writes all rows' keys and values into ``cache``."""
        q, k, v = self.qkv_proj(x)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, rotation), rotate(k, rotation)
        attended = paged_attention(q, k, v, cache, batch, self.scale)
        out: Tensor = self.o_proj(rows_of(attended.flatten(1), rows))
        return out


class CrossAttention(nn.Module):
    """Attention of a language model to the features of images, whose keys and values are kept with them.

    Heads of queries and keys are normalised; nothing is rotated.
    """

    def __init__(self, hidden_size: int, heads: HeadShard, norm_eps: float, placement: Placement) -> None:
        super().__init__()
        self.scale = heads.head_dim**-0.5
        self.q_proj = QueryLinear(hidden_size, heads, placement)
        self.kv_proj = KeyValueLinear(hidden_size, heads, placement)
        width = heads.total_heads * heads.head_dim
        self.o_proj = RowParallelLinear(width, hidden_size, bias=False, placement=placement)
        self.q_norm = RMSNorm(heads.head_dim, norm_eps, placement)
        self.k_norm = RMSNorm(heads.head_dim, norm_eps, placement)

    def write_keys_values(self, features: Tensor, keys: Tensor, values: Tensor) -> None:
        """Fill ``keys`` and ``values``, each [rows, Hkv, D], from features [rows, d]."""
        k, v = self.kv_proj(features)
        keys.copy_(self.k_norm(k))
        values.copy_(v)

    def forward(self, x: Tensor, memories: Sequence[Memory]) -> Tensor:
        """[n, d] -> [n, d]; the memories' rows cover the n rows in order."""
        q = self.q_norm(self.q_proj(x))
        parts = q.split([memory.num_queries for memory in memories])
        attended = [
            attend_memory(part, memory.keys, memory.values, self.scale)
            for part, memory in zip(parts, memories, strict=True)
        ]
        out: Tensor = self.o_proj((attended[0] if len(attended) == 1 else torch.cat(attended)).flatten(1))
        return out


class SegmentAttention(nn.Module):
    """Attention of a vision encoder.

    ``fused`` says whether its checkpoint keeps query, key and value in one tensor.
    """

    def __init__(
        self, hidden_size: int, heads: HeadShard, *, bias: bool, placement: Placement, fused: bool = True
    ) -> None:
        super().__init__()
        self.scale = heads.head_dim**-0.5
        self.kernel = placement.segment_kernel
        self.qkv = QKVLinear(hidden_size, heads, bias=bias, placement=placement, fused=fused)
        self.proj = RowParallelLinear(hidden_size, hidden_size, bias=bias, placement=placement)

    def forward(self, x: Tensor, rotation: Rotation, segments: Segments) -> Tensor:
        """[n, d] -> [n, d]; rows attend within their segment."""
        q, k, v = self.qkv(x)
        q, k = rotate(q, rotation), rotate(k, rotation)
        out: Tensor = self.proj(segment_attention(q, k, v, segments, self.scale, self.kernel).flatten(1))
        return out

"""The decoder layer that most families share: normalise, attend, normalise, feed forward, with residuals.

Of the last layer only those rows are asked for after which a token is sampled; of the others only keys and values.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from chiasm.layers.attention import CausalAttention, rows_of
from chiasm.layers.mlp import GatedMLP
from chiasm.layers.norm import RMSNorm
from chiasm.layers.shards import HeadShard
from chiasm.layers.weight import Placement
from chiasm.ops.paged_attention import KVCache, PagedBatch
from chiasm.ops.rope import Rotation


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a decoder layer.

    Attributes:
        hidden_size: of the residual stream.
        intermediate_size: of the MLP, over all ranks.
        heads: of this rank.
        norm_eps: of both norms.
        qkv_bias: whether query, key and value have biases.
        qk_norm: whether heads of queries and keys are normalised.
    """

    hidden_size: int
    intermediate_size: int
    heads: HeadShard
    norm_eps: float
    qkv_bias: bool
    qk_norm: bool = False


class DecoderLayer(nn.Module):
    """One layer of a language model; ``mlp`` takes the place of its gated MLP."""

    def __init__(self, shape: DecoderShape, placement: Placement, mlp: nn.Module | None = None) -> None:
        super().__init__()
        size = shape.hidden_size
        self.input_layernorm = RMSNorm(size, shape.norm_eps, placement)
        self.self_attn = CausalAttention(
            size,
            shape.heads,
            qkv_bias=shape.qkv_bias,
            placement=placement,
            qk_norm_eps=shape.norm_eps if shape.qk_norm else None,
        )
        self.post_attention_layernorm = RMSNorm(size, shape.norm_eps, placement)
        self.mlp = mlp or GatedMLP(size, shape.intermediate_size, bias=False, placement=placement)

    def forward(
        self, x: Tensor, rotation: Rotation, cache: KVCache, batch: PagedBatch, rows: Tensor | None = None
    ) -> Tensor:
        """[n, d] -> [n, d], or [m, d] of the ``rows`` asked for."""
        x = rows_of(x, rows) + self.self_attn(self.input_layernorm(x), rotation, cache, batch, rows)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class SandwichDecoderLayer(DecoderLayer):
    """A layer that normalises what attention and MLP give as well, before it is added."""

    def __init__(self, shape: DecoderShape, placement: Placement, mlp: nn.Module | None = None) -> None:
        super().__init__(shape, placement, mlp)
        self.post_self_attn_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps, placement)
        self.post_mlp_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps, placement)

    def forward(
        self, x: Tensor, rotation: Rotation, cache: KVCache, batch: PagedBatch, rows: Tensor | None = None
    ) -> Tensor:
        """[n, d] -> [n, d], or [m, d] of the ``rows`` asked for."""
        attended = self.self_attn(self.input_layernorm(x), rotation, cache, batch, rows)
        x = rows_of(x, rows) + self.post_self_attn_layernorm(attended)
        out: Tensor = x + self.post_mlp_layernorm(self.mlp(self.post_attention_layernorm(x)))
        return out

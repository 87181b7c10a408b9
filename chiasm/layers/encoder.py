"""The layer of a vision tower: normalise, attend within segments, normalise, feed forward, with residuals."""

from __future__ import annotations

from typing import TypeAlias

from torch import Tensor, nn

from chiasm.layers.attention import SegmentAttention
from chiasm.layers.norm import LayerNorm, RMSNorm
from chiasm.layers.shards import HeadShard
from chiasm.layers.weight import Placement
from chiasm.ops.rope import Rotation
from chiasm.ops.segments import Segments

NormKind: TypeAlias = type[LayerNorm] | type[RMSNorm]


class EncoderLayer(nn.Module):
    """One layer of a tower whose attention has biases; ``fused_qkv`` is as ``SegmentAttention`` has it."""

    def __init__(
        self,
        size: int,
        heads: HeadShard,
        norm: NormKind,
        mlp: nn.Module,
        placement: Placement,
        *,
        norm_eps: float = 1e-6,
        fused_qkv: bool = True,
    ) -> None:
        super().__init__()
        self.norm1 = norm(size, norm_eps, placement)
        self.attn = SegmentAttention(size, heads, bias=True, placement=placement, fused=fused_qkv)
        self.norm2 = norm(size, norm_eps, placement)
        self.mlp = mlp

    def forward(self, x: Tensor, rotation: Rotation, segments: Segments) -> Tensor:
        """[n, d] -> [n, d]."""
        x = x + self.attn(self.norm1(x), rotation, segments)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out

"""Normalisation with weights; never sharded."""

from __future__ import annotations

from torch import Tensor, nn

from chiasm.layers.weight import Part, Placement, Weight
from chiasm.ops.norm import rms_norm


class RMSNorm(nn.Module):
    """Root-mean-square normalisation of [..., d]."""

    def __init__(self, size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Weight((size,), {"": Part.whole(size)}, placement.dtype, placement.device)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        return rms_norm(x, self.weight, self.eps)

"""Normalisation with weights; never sharded."""

from __future__ import annotations

import torch.nn.functional as F
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


class LayerNorm(nn.Module):
    """Normalisation of [..., d] to a mean of zero and a variance of one, with weight and bias."""

    def __init__(self, size: int, eps: float, placement: Placement) -> None:
        super().__init__()
        self.eps = eps
        self.weight = Weight((size,), {"": Part.whole(size)}, placement.dtype, placement.device)
        self.bias = Weight((size,), {"": Part.whole(size)}, placement.dtype, placement.device)

    def forward(self, x: Tensor) -> Tensor:
        """[..., d] -> [..., d]."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)

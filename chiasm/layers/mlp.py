"""Feed-forward layers."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chiasm.layers.linear import ColumnParallelLinear, GateUpLinear, RowParallelLinear
from chiasm.layers.weight import Placement


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), its inner size sharded.

    ``fused`` says that the checkpoint keeps gate and up in one tensor.
    """

    def __init__(
        self, hidden_size: int, intermediate_size: int, *, bias: bool, placement: Placement, fused: bool = False
    ) -> None:
        super().__init__()
        self.gate_up_proj = GateUpLinear(hidden_size, intermediate_size, bias=bias, placement=placement, fused=fused)
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, bias=bias, placement=placement)

    def forward(self, x: Tensor) -> Tensor:
        """[n, d] -> [n, d]."""
        out: Tensor = self.down_proj(self._inner(x))
        return out

    def own_part(self, x: Tensor) -> Tensor:
        """[n, d] -> [n, d], this rank's part of the sum over the ranks, for a layer without biases."""
        return self.down_proj.own_part(self._inner(x))

    def _inner(self, x: Tensor) -> Tensor:
        """[n, d] -> [n, intermediate size of this rank]."""
        gate, up = self.gate_up_proj(x)
        return F.silu(gate).mul_(up)


class PlainMLP(nn.Module):
    """fc2(gelu(fc1(x))) with biases, its inner size sharded.

    ``approximate`` is torch's way to say which gelu, or "quick" for x * sigmoid(1.702 x).
    """

    def __init__(
        self,
        in_features: int,
        intermediate_size: int,
        out_features: int,
        approximate: Literal["none", "tanh", "quick"],
        placement: Placement,
    ) -> None:
        super().__init__()
        self.approximate = approximate
        self.fc1 = ColumnParallelLinear(in_features, intermediate_size, bias=True, placement=placement)
        self.fc2 = RowParallelLinear(intermediate_size, out_features, bias=True, placement=placement)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        out: Tensor = self.fc2(_gelu(self.fc1(x), self.approximate))
        return out


def _gelu(x: Tensor, approximate: str) -> Tensor:
    if approximate == "quick":
        return torch.sigmoid(1.702 * x).mul_(x)
    return F.gelu(x, approximate=approximate)

"""Feed-forward layers."""

from __future__ import annotations

from typing import Literal

import torch
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
        out: Tensor = self.down_proj(self.gate_up_proj(x))
        return out

    def own_part(self, x: Tensor) -> Tensor:
        """[n, d] -> [n, d], this rank's part of the sum over the ranks, for a layer without biases."""
        return self.down_proj.own_part(self.gate_up_proj(x))


class PlainMLP(nn.Module):
    """fc2(gelu(fc1(x))) with biases, its inner size sharded.

    ``activation`` says which gelu: the exact one, its approximation by a tanh, or "quick" for x * sigmoid(1.702 x).
    """

    def __init__(
        self,
        in_features: int,
        intermediate_size: int,
        out_features: int,
        activation: Literal["gelu", "gelu_tanh", "quick"],
        placement: Placement,
    ) -> None:
        super().__init__()
        self.activation = activation
        self.fc1 = ColumnParallelLinear(in_features, intermediate_size, bias=True, placement=placement)
        self.fc2 = RowParallelLinear(intermediate_size, out_features, bias=True, placement=placement)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        out: Tensor = self.fc2(self._inner(x))
        return out

    def _inner(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, intermediate size of this rank]."""
        if self.activation == "quick":
            inner: Tensor = self.fc1(x)
            return torch.sigmoid(1.702 * inner).mul_(inner)
        activated: Tensor = self.fc1(x, self.activation)
        return activated

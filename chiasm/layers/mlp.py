"""Feed-forward layers."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from chiasm.layers.linear import GateUpLinear, RowParallelLinear
from chiasm.layers.weight import Placement


class GatedMLP(nn.Module):
    """down(silu(gate(x)) * up(x)), its inner size sharded."""

    def __init__(self, hidden_size: int, intermediate_size: int, *, bias: bool, placement: Placement) -> None:
        super().__init__()
        self.gate_up_proj = GateUpLinear(hidden_size, intermediate_size, bias=bias, placement=placement)
        self.down_proj = RowParallelLinear(intermediate_size, hidden_size, bias=bias, placement=placement)

    def forward(self, x: Tensor) -> Tensor:
        """[n, d] -> [n, d]."""
        gate, up = self.gate_up_proj(x)
        out: Tensor = self.down_proj(F.silu(gate).mul_(up))
        return out

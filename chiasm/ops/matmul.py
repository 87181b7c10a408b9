"""Products of rows with weight matrices, which a CPU reads much faster once they are laid out in its kernels' blocks.

oneDNN's layout, reached through the operators that torch's own compiler uses. With a few rows, as in decoding, a
product is two to four times as fast as one with a plain matrix, and with many about a tenth (docs/performance.md).
Where there are two rows or more, each has the same result to the last bit whatever the others are and how many. A row
alone is summed by another kernel, whose last bits can differ: in float32 above 1,024 columns, in bfloat16 at some
sizes. So it was found in the kernels for AVX2 and AVX-512. oneDNN promises it for none; those for AMX and for other
makes of CPU were not looked at. A matrix that is laid out knows only these products. Shapes: n rows.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

Activation = Literal["none", "silu", "gelu", "gelu_tanh"]

# Below so many elements what a call costs outweighs what it gains.
_MIN_ELEMENTS = 2**17
# Rows that the layout is made for; it serves any number of them about as well.
_ROWS = 64
# How oneDNN's operators name them: (attribute, algorithm).
_FUSED: dict[Activation, tuple[str, str]] = {
    "none": ("none", ""),
    "silu": ("swish", ""),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
}


def is_worth_packing(weight: Tensor, device: torch.device | None = None) -> bool:
    """Whether ``pack`` knows and helps a matrix of this size and type, on ``device`` if it is to go to another."""
    is_on_cpu = (device or weight.device).type == "cpu"
    if not is_on_cpu or not torch.backends.mkldnn.is_available() or weight.numel() < _MIN_ELEMENTS:
        return False
    if weight.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return weight.dtype == torch.float32


def pack(weight: Tensor) -> Tensor:
    """Lay a matrix [out, in] out for products with any number of rows; as it is where that gains nothing."""
    if not is_worth_packing(weight):
        return weight
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), _ROWS)
    return packed


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, activation: Activation = "none") -> Tensor:
    """Product with a matrix, plus a bias, and activated.

    Args:
        x: [n, in].
        weight: [out, in], plain or packed.
        bias: [out].
        activation: applied to the sum; the gelus are the exact one and its approximation by a tanh.

    Returns:
        [n, out].
    """
    if weight.is_mkldnn:
        return _fused(x, weight, bias, activation)
    out = F.linear(x, weight, bias)
    if activation == "silu":
        return F.silu(out)
    if activation == "none":
        return out
    return F.gelu(out, approximate="tanh" if activation == "gelu_tanh" else "none")


def linear_times(x: Tensor, weight: Tensor, bias: Tensor | None, factor: Tensor) -> Tensor:
    """Product with a matrix, plus a bias, times ``factor`` [n, out] element by element: [n, in] -> [n, out]."""
    if weight.is_mkldnn:
        product: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, factor, weight, bias, "mul")
        return product
    return F.linear(x, weight, bias).mul_(factor)


def _fused(x: Tensor, weight: Tensor, bias: Tensor | None, activation: Activation) -> Tensor:
    attribute, algorithm = _FUSED[activation]
    out: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, attribute, [], algorithm)
    return out

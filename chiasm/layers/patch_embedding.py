"""Patch embedding as one matmul over raw bytes of pixels, with the normalisation folded into its weights.

Shapes: n patches, C channels, T frames, P patch side, d hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from chiasm.layers.weight import Part, Placement, Weight
from chiasm.ops.matmul import linear, pack

# Bytes are centred before the matmul: exact in bfloat16, and the bias has less to cancel.
_CENTRE = 128


@dataclass(frozen=True)
class PixelNormalisation:
    """What the model was trained on: byte * scale + shift, for each channel."""

    scale: tuple[float, ...]
    shift: tuple[float, ...]


class PatchEmbedding(nn.Module):
    """[n, C * T * P * P] bytes -> [n, d]; never sharded.

    ``source_shape`` is that of the checkpoint's convolution, whose kernel equals its stride: (d, C, T, P, P), or of
    its matrix: (d, C * T * P * P); and ``bias`` says whether it has one.
    """

    def __init__(
        self,
        source_shape: tuple[int, ...],
        normalisation: PixelNormalisation,
        placement: Placement,
        *,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.dtype = placement.dtype
        self.normalisation = normalisation
        hidden_size, channels = source_shape[0], len(normalisation.scale)
        part = Part.whole(*source_shape)
        row_bytes = torch.Size(source_shape[1:]).numel()
        assert row_bytes % channels == 0
        assert len(normalisation.shift) == channels
        # float64 until the fold, so that the weights are rounded only once.
        self.weight: nn.Parameter = Weight((hidden_size, row_bytes), {"": part}, torch.float64, placement.device)
        self.bias: nn.Parameter | None = None
        if bias:
            whole = {"": Part.whole(hidden_size)}
            self.bias = Weight((hidden_size,), whole, torch.float64, placement.device)

    def fold_normalisation(self) -> None:
        """Turn the loaded weights into those that take bytes; called once."""
        assert isinstance(self.weight, Weight)
        channels = len(self.normalisation.scale)
        raw = self.weight.data.view(self.weight.shape[0], channels, -1)
        scale = raw.new_tensor(self.normalisation.scale)[:, None]
        shift = raw.new_tensor(self.normalisation.shift)[:, None] + _CENTRE * scale
        bias = (raw * shift).sum((1, 2))
        if self.bias is not None:
            bias += self.bias
        self.weight = nn.Parameter(pack((raw * scale).flatten(1).to(self.dtype)), requires_grad=False)
        self.bias = nn.Parameter(bias.to(self.dtype), requires_grad=False)

    def forward(self, pixels: Tensor) -> Tensor:
        """uint8 [n, C * T * P * P] -> [n, d]."""
        assert self.bias is not None
        return linear(pixels.to(self.dtype).sub_(_CENTRE), self.weight, self.bias)

"""Random weights in place of a checkpoint's: for measuring speed, and for checks where there is no checkpoint."""

from __future__ import annotations

import math
import zlib
from itertools import product

import torch
from torch import Tensor

from chiasm.layers.weight import CheckpointTensor, Part

_CHUNK, _CPU_CHUNK = 2**24, 2**20  # elements that are computed at a time, in 8 bytes each; a CPU's cache holds few
_WORD = 0xFFFFFFFF
_MULTIPLIER = 0x45D9F3B  # below 2**31, so that products with a word fit into 63 bits


class DummyTensor(CheckpointTensor):
    """A tensor that no file has. Each element is a hash of the tensor's name and the element's place.

    So every device and every share of the ranks has the same numbers, to the last bit. They are uniform, and about as
    large as a trained model's, so that activations neither vanish nor explode from layer to layer.

    Args:
        name: of the weight's part, as a checkpoint would name it.
        part: whose shape it has.
        dtype: of the weight.
        device: of the weight; the numbers are made there.
    """

    def __init__(self, name: str, part: Part, dtype: torch.dtype, device: torch.device) -> None:
        self._seed = zlib.crc32(name.encode())
        self._shape = part.source_shape
        self._dtype = dtype
        self._device = device
        self._mean, self._deviation = _distribution(name, part)

    @property
    def shape(self) -> tuple[int, ...]:
        """See ``CheckpointTensor``."""
        return self._shape

    def read(self, dim: int, start: int, length: int) -> Tensor:
        """See ``CheckpointTensor``; on the device and in the type of the weight."""
        inner = math.prod(self._shape[dim + 1 :])
        stride, run = self._shape[dim] * inner, length * inner
        outer = math.prod(self._shape[:dim])
        out = torch.empty(outer, run, dtype=self._dtype, device=self._device)
        starts = torch.arange(outer, device=self._device)[:, None] * stride + start * inner
        size = _CPU_CHUNK if self._device.type == "cpu" else _CHUNK
        num_rows = max(1, size // run)
        for row, column in product(range(0, outer, num_rows), range(0, run, size)):
            chunk = out[row : row + num_rows, column : column + size]
            columns = torch.arange(column, column + chunk.shape[1], device=self._device)
            chunk.copy_(self._numbers(starts[row : row + num_rows] + columns))
        return out.view(*self._shape[:dim], length, *self._shape[dim + 1 :])

    def _numbers(self, places: Tensor) -> Tensor:
        """float32, from the elements' places in the whole tensor, which are overwritten."""
        words = places.add_(places >> 32, alpha=_MULTIPLIER).add_(self._seed).bitwise_and_(_WORD)
        for _ in range(2):
            words.bitwise_xor_(words >> 16).mul_(_MULTIPLIER).bitwise_and_(_WORD)
        words.bitwise_xor_(words >> 16)
        # 24 bits are exact in float32, in [-1, 1) too; what follows is rounded alike on every device.
        uniform = words.bitwise_right_shift_(8).to(torch.float32).mul_(2.0**-23).sub_(1.0)
        return uniform.mul_(math.sqrt(3.0) * self._deviation).add_(self._mean)


def _distribution(name: str, part: Part) -> tuple[float, float]:
    """Mean and standard deviation of a weight."""
    shape = part.source_shape
    if name.endswith("bias"):
        return 0.0, 0.1
    if "embed" in name and "patch_embed" not in name:
        return 0.0, 0.3
    if len(shape) == 1:  # norms, and factors
        return 1.0, 0.1
    has_experts = len(shape) == 3  # [E, out, in], or [E, in, out]
    fan_in = shape[-2 if part.is_swapped else -1] if has_experts else math.prod(shape[1:])
    return 0.0, fan_in**-0.5

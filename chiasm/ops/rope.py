"""Rotary position embeddings: angles from positions, and their application to queries and keys.

Shapes: n rows, H heads, D head size; tables of cosines and sines are [n, D / 2], for the halves that are rotated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Cosines and sines of the angles that each row is rotated by, each [n, D / 2]."""

    cos: Tensor
    sin: Tensor

    def to(self, dtype: torch.dtype) -> Rotation:
        """The same rotation in another type."""
        return Rotation(self.cos.to(dtype), self.sin.to(dtype))


def inverse_frequencies(dim: int, theta: float, device: torch.device) -> Tensor:
    """Angle per step of position, from fast to slow: [dim / 2], float32."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim
    return (1.0 / theta**exponents).to(device)


def multimodal_rotation(positions: Tensor, frequencies: Tensor, sections: Sequence[int]) -> Rotation:
    """Rotation for positions in time, height and width that share out the frequencies in sections.

    Args:
        positions: LongTensor [3, n].
        frequencies: [D / 2].
        sections: how many frequencies follow time, height and width; they add up to D / 2.
    """
    angles = positions[..., None].float() * frequencies  # [3, n, D / 2]
    by_section = torch.split(angles, list(sections), dim=-1)
    own = torch.cat([section[axis] for axis, section in enumerate(by_section)], dim=-1)
    return Rotation(own.cos(), own.sin())


def grid_rotation(positions: Tensor, frequencies: Tensor) -> Rotation:
    """Rotation for patches of an image: the first half of the frequencies follows the row, the second the column.

    Args:
        positions: LongTensor [n, 2], row and column of each patch.
        frequencies: [D / 4].
    """
    angles = (positions[..., None].float() * frequencies).flatten(1)  # [n, D / 2]
    return Rotation(angles.cos(), angles.sin())


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each head: element i of its first half together with element i of its second.

    Args:
        x: [n, H, D].
        rotation: its type decides the precision of the product.

    Returns:
        [n, H, D] in the type of ``x``.
    """
    cos, sin = rotation.cos[:, None], rotation.sin[:, None]
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)

"""Rotary position embeddings: angles from positions, and their application to queries and keys.

Shapes: n rows, H heads, D head size, R of a head's elements that are rotated, the first ones; often all. Tables of
cosines and sines are [n, R / 2], one angle for each pair of elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Pairing = Literal["halves", "neighbours"]
"""Which elements are rotated together: i with i + R / 2, or 2 i with 2 i + 1."""


class Rotation(NamedTuple):
    """How each row is rotated.

    Attributes:
        cos: cosines of the angles, [n, R / 2].
        sin: sines of the angles, [n, R / 2].
        pairing: of the elements of a head.
    """

    cos: Tensor
    sin: Tensor
    pairing: Pairing = "halves"

    def to(self, dtype: torch.dtype) -> Rotation:
        """The same rotation in another type."""
        return self._replace(cos=self.cos.to(dtype), sin=self.sin.to(dtype))


def inverse_frequencies(dim: int, theta: float, device: torch.device) -> Tensor:
    """Angle per step of position, from fast to slow: [dim / 2], float32."""
    exponents = torch.arange(0, dim, 2, dtype=torch.float32, device="cpu") / dim
    return (1.0 / theta**exponents).to(device)


class LongContext(NamedTuple):
    """How Llama 3.1 and later stretch frequencies for contexts beyond those that they were first trained with.

    Attributes:
        factor: by which slow frequencies are divided.
        low_freq_factor: turns within the original context up to which a frequency is slow.
        high_freq_factor: turns from which on it stays what it is; in between it is a mixture.
        original_max_position_embeddings: the original context.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


def stretched_frequencies(frequencies: Tensor, context: LongContext) -> Tensor:
    """[D / 2] -> [D / 2], the slow ones divided by the factor."""
    turns = context.original_max_position_embeddings * frequencies / (2 * math.pi)
    low, high = context.low_freq_factor, context.high_freq_factor
    kept = (turns > low).to(turns.dtype) if high == low else ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - kept) * frequencies / context.factor + kept * frequencies


def text_rotation(positions: Tensor, frequencies: Tensor, pairing: Pairing) -> Rotation:
    """Rotation for positions in a text.

    Args:
        positions: LongTensor [n].
        frequencies: [D / 2].
        pairing: of the elements of a head.
    """
    angles = positions[:, None].float() * frequencies  # [n, D / 2]
    return Rotation(angles.cos(), angles.sin(), pairing)


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


def interleaved_rotation(positions: Tensor, frequencies: Tensor, sections: Sequence[int]) -> Rotation:
    """Rotation for positions in time, height and width that take turns at the frequencies.

    Args:
        positions: LongTensor [3, n].
        frequencies: [D / 2].
        sections: how many frequencies follow time, height and width; they add up to D / 2. Height and width have one
            of every three as long as they last, time has the rest.
    """
    axes = _interleaved_axes(len(frequencies), tuple(sections), positions.device)
    angles = positions[axes].T.float() * frequencies  # [n, D / 2]
    return Rotation(angles.cos(), angles.sin())


@lru_cache(maxsize=16)
def _interleaved_axes(num_frequencies: int, sections: tuple[int, ...], device: torch.device) -> Tensor:
    """LongTensor [num_frequencies], the axis of each; made once, since a step must not wait for a copy."""
    axes = torch.zeros(num_frequencies, dtype=torch.int64, device="cpu")
    for axis in (1, 2):
        axes[axis : 3 * sections[axis] : 3] = axis
    return axes.to(device)


def grid_rotation(positions: Tensor, frequencies: Tensor) -> Rotation:
    """Rotation for patches of an image: the first half of the frequencies follows the row, the second the column.

    Args:
        positions: LongTensor [n, 2], row and column of each patch.
        frequencies: [D / 4].
    """
    angles = (positions[..., None].float() * frequencies).flatten(1)  # [n, D / 2]
    return Rotation(angles.cos(), angles.sin())


def rotate(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each head's first R elements in pairs; the others stay what they are.

    Args:
        x: [n, H, D].
        rotation: its type decides the precision of the product.

    Returns:
        [n, H, D] in the type of ``x``.
    """
    cos, sin = rotation.cos[:, None], rotation.sin[:, None]
    width = 2 * cos.shape[-1]
    wide = x.to(torch.promote_types(x.dtype, cos.dtype))
    # Into place: on a CPU, making what lies in between and joining it costs several times what the products cost.
    out = wide.new_empty(wide.shape)
    first, second = _pairs(wide[..., :width], rotation.pairing)
    turned_first, turned_second = _pairs(out[..., :width], rotation.pairing)
    torch.mul(first, cos, out=turned_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=turned_second).addcmul_(first, sin)
    if width < x.shape[-1]:
        out[..., width:] = wide[..., width:]
    return out.to(x.dtype)


def _pairs(x: Tensor, pairing: Pairing) -> tuple[Tensor, Tensor]:
    """[..., R] -> two views [..., R / 2], the first and the second of each pair."""
    if pairing == "halves":
        half = x.shape[-1] // 2
        return x[..., :half], x[..., half:]
    return x[..., 0::2], x[..., 1::2]

"""Weights that know which pieces of which checkpoint tensors they are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from chiasm.dist.group import Group
from chiasm.ops.varlen import RUN_BY_RUN, SegmentKernel


@dataclass(frozen=True)
class Placement:
    """Where weights live.

    Attributes:
        group: the ranks that they are sharded over.
        dtype: in memory.
        device: of this rank.
        segment_kernel: what a tower's segments attend with there.
    """

    group: Group
    dtype: torch.dtype
    device: torch.device
    segment_kernel: SegmentKernel = RUN_BY_RUN


class CheckpointTensor(Protocol):
    """A tensor of a checkpoint, of which only what is asked for is read or made."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its whole shape."""

    def read(self, dim: int, start: int, length: int) -> Tensor:
        """The slice [start, start + length) of dimension ``dim``, on any device and in any type."""


class Piece(NamedTuple):
    """A run of rows (or columns) of a checkpoint tensor and where it goes in the weight."""

    source_start: int
    length: int
    target_start: int


@dataclass(frozen=True)
class Part:
    """What one checkpoint tensor gives to a weight of this rank.

    Attributes:
        source_shape: the checkpoint tensor's whole shape.
        pieces: what is taken of it.
        dim: its dimension that the pieces are cut from.
        index: the entry of the weight's first dimension that it fills, as one expert of many; None for all of them.
        is_swapped: whether it has the last two dimensions the other way round than the weight.
    """

    source_shape: tuple[int, ...]
    pieces: tuple[Piece, ...]
    dim: int = 0
    index: int | None = None
    is_swapped: bool = False

    @classmethod
    def whole(cls, *source_shape: int) -> Part:
        """All of a tensor."""
        return cls(source_shape, (Piece(0, source_shape[0], 0),))


class Weight(nn.Parameter):
    """A parameter of this rank, uninitialised until its parts are loaded.

    Attributes:
        parts: name -> part. The name "" is the weight's own; another is that of a sibling of the layer which the
            checkpoint keeps apart, such as "k_proj" in the weight of a fused "qkv_proj".
    """

    parts: Mapping[str, Part]

    def __new__(
        cls, shape: tuple[int, ...], parts: Mapping[str, Part], dtype: torch.dtype, device: torch.device
    ) -> Weight:
        """Allocate ``shape``."""
        data = torch.empty(shape, dtype=dtype, device=device)
        weight: Weight = super().__new__(cls, data, requires_grad=False)
        weight.parts = parts
        return weight

    def load(self, name: str, source: CheckpointTensor) -> None:
        """Fill the part ``name``; the source has the part's shape."""
        part = self.parts[name]
        assert source.shape == part.source_shape
        filled = self.data if part.index is None else self.data[part.index]
        if part.is_swapped:
            filled = filled.transpose(-2, -1)
        for start, length, target_start in part.pieces:
            if length:
                target = filled.narrow(part.dim, target_start, length)
                target.copy_(source.read(part.dim, start, length).reshape(target.shape))

"""Linear layers that are sharded over a group.

A column-parallel layer holds some of the outputs and needs no exchange; a row-parallel one, which follows it, holds
the matching inputs and sums over the ranks. n is the rows of a packed batch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chiasm.layers.shards import HeadShard, shard_bounds
from chiasm.layers.weight import Part, Piece, Placement, Weight
from chiasm.ops.matmul import Activation, is_worth_packing, linear, linear_times, pack


class _Rows(NamedTuple):
    """Output rows of one checkpoint tensor: how many it has, and what this rank takes of them."""

    total: int
    pieces: tuple[Piece, ...]


class PackedLayer(nn.Module, ABC):
    """A layer with matrices that are packed for fast products once they are loaded."""

    @abstractmethod
    def pack(self) -> None:
        """Pack them; called once, when every weight is loaded."""

    def copied_bytes(self, device: torch.device) -> int:  # noqa: ARG002
        """What packing takes beside the weights as they were loaded, once the layer is on ``device``."""
        return 0


def packed(weight: nn.Parameter) -> nn.Parameter:
    """A weight [out, in], packed; the very same one where that gains nothing."""
    laid_out = pack(weight.data)
    return nn.Parameter(laid_out, requires_grad=False) if laid_out.is_mkldnn else weight


class _ColumnSharded(PackedLayer):
    """Weight and bias of a layer whose outputs are sharded: [out of this rank, in].

    ``source_in`` is how checkpoints have the inputs where they are not one dimension.
    """

    def __init__(
        self,
        in_features: int,
        parts: Mapping[str, _Rows],
        *,
        bias: bool,
        placement: Placement,
        source_in: tuple[int, ...] = (),
    ) -> None:
        super().__init__()
        out_features = sum(piece.length for rows in parts.values() for piece in rows.pieces)
        source_in = source_in or (in_features,)
        weights = {name: Part((rows.total, *source_in), rows.pieces) for name, rows in parts.items()}
        self.weight: nn.Parameter = Weight((out_features, in_features), weights, placement.dtype, placement.device)
        self.bias: Weight | None = None
        if bias:
            biases = {name: Part((rows.total,), rows.pieces) for name, rows in parts.items()}
            self.bias = Weight((out_features,), biases, placement.dtype, placement.device)

    def pack(self) -> None:
        """Pack the weight."""
        self.weight = packed(self.weight)

    def project(self, x: Tensor, activation: Activation = "none") -> Tensor:
        """[n, in] -> [n, out of this rank]."""
        return linear(x, self.weight, self.bias, activation)


class ColumnParallelLinear(_ColumnSharded):
    """One checkpoint tensor, its outputs sharded."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, placement: Placement) -> None:
        start, stop = shard_bounds(out_features, placement.group)
        rows = _Rows(out_features, (Piece(start, stop - start, 0),))
        super().__init__(in_features, {"": rows}, bias=bias, placement=placement)

    def forward(self, x: Tensor, activation: Activation = "none") -> Tensor:
        """[n, in] -> [n, out of this rank]."""
        return self.project(x, activation)


class BlockConvolution(_ColumnSharded):
    """A convolution whose kernel and stride are a merge block, as one matmul; its outputs are sharded.

    ``side`` is that of a block in patches.
    """

    def __init__(self, in_features: int, out_features: int, side: int, *, placement: Placement) -> None:
        start, stop = shard_bounds(out_features, placement.group)
        rows = _Rows(out_features, (Piece(start, stop - start, 0),))
        source_in = (in_features, side, side)
        super().__init__(in_features * side**2, {"": rows}, bias=True, placement=placement, source_in=source_in)
        self.block_rows = side**2

    def forward(self, x: Tensor) -> Tensor:
        """[n, in], the patches of a block one after another, row by row -> [blocks, out of this rank]."""
        blocks = x.view(-1, self.block_rows, x.shape[1])
        return self.project(blocks.transpose(1, 2).flatten(1))


class GatedPair(NamedTuple):
    """Gate and up projection, packed; ``gate_bias`` and ``up_bias`` are [out] or None."""

    gate: Tensor
    up: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None

    @classmethod
    def packed(cls, weight: Tensor, bias: Tensor | None = None) -> GatedPair | None:
        """Of gate above up, [2 out, in]; None if packing them gains nothing."""
        gate, up = weight.chunk(2)
        if not is_worth_packing(gate):
            return None
        biases = (None, None) if bias is None else bias.chunk(2)
        return cls(pack(gate), pack(up), *biases)

    def __call__(self, x: Tensor) -> Tensor:
        """silu(gate(x)) * up(x): [n, in] -> [n, out]."""
        return linear_times(x, self.up, self.up_bias, linear(x, self.gate, self.gate_bias, "silu"))


class GateUpLinear(_ColumnSharded):
    """silu(gate(x)) * up(x), the gated half of an MLP.

    ``fused`` says that the checkpoint keeps both projections in one tensor of that name ("") rather than in gate_proj
    and up_proj.
    """

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, placement: Placement, fused: bool = False
    ) -> None:
        start, stop = shard_bounds(out_features, placement.group)
        length = stop - start
        parts = {
            "gate_proj": _Rows(out_features, (Piece(start, length, 0),)),
            "up_proj": _Rows(out_features, (Piece(start, length, length),)),
        }
        if fused:
            parts = {"": _stack(parts.values())}
        super().__init__(in_features, parts, bias=bias, placement=placement)
        self.packed: GatedPair | None = None

    def pack(self) -> None:
        """Pack gate and up apart, if that gains anything."""
        pair = GatedPair.packed(self.weight.data, None if self.bias is None else self.bias.data)
        if pair is not None:
            self.packed = pair
            self.weight = nn.Parameter(self.weight.new_empty(0), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out of this rank]."""
        if self.packed is not None:
            return self.packed(x)
        gate, up = self.project(x).chunk(2, dim=-1)
        return F.silu(gate).mul_(up)


class QKVLinear(_ColumnSharded):
    """Query, key and value projections in one matmul, sharded by heads.

    ``fused`` says that the checkpoint keeps them in one tensor of that name ("") rather than in q_proj, k_proj and
    v_proj. Where there are more ranks than key-value heads, neighbouring ranks hold the same head.
    """

    def __init__(
        self, in_features: int, heads: HeadShard, *, bias: bool, placement: Placement, fused: bool = False
    ) -> None:
        rows = _head_rows(heads)
        parts = {"": _stack(rows.values())} if fused else rows
        super().__init__(in_features, parts, bias=bias, placement=placement)
        self.heads = heads

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """[n, in] -> q [n, H, D], k [n, Hkv, D] and v [n, Hkv, D] of this rank's heads."""
        heads = self.heads
        kv_start, v_start = heads.num_heads, heads.num_heads + heads.num_kv_heads
        packed = self.project(x).view(x.shape[0], v_start + heads.num_kv_heads, heads.head_dim)
        return packed[:, :kv_start], packed[:, kv_start:v_start], packed[:, v_start:]


class QueryLinear(_ColumnSharded):
    """The query projection alone, sharded by heads."""

    def __init__(self, in_features: int, heads: HeadShard, placement: Placement) -> None:
        rows = {"": _head_rows(heads)["q_proj"]}
        super().__init__(in_features, rows, bias=False, placement=placement)
        self.heads = heads

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, H, D]."""
        return self.project(x).view(-1, self.heads.num_heads, self.heads.head_dim)


class KeyValueLinear(_ColumnSharded):
    """Key and value projections in one matmul, sharded by heads; the checkpoint has k_proj and v_proj."""

    def __init__(self, in_features: int, heads: HeadShard, placement: Placement) -> None:
        rows = _head_rows(heads)
        first = heads.num_heads * heads.head_dim
        parts = {
            name: rows[name]._replace(
                pieces=tuple(piece._replace(target_start=piece.target_start - first) for piece in rows[name].pieces)
            )
            for name in ("k_proj", "v_proj")
        }
        super().__init__(in_features, parts, bias=False, placement=placement)
        self.heads = heads

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """[n, in] -> k and v, each [n, Hkv, D]."""
        keys, values = self.project(x).view(-1, 2, self.heads.num_kv_heads, self.heads.head_dim).unbind(1)
        return keys, values


def _head_rows(heads: HeadShard) -> dict[str, _Rows]:
    dim = heads.head_dim
    q_length, kv_length = heads.num_heads * dim, heads.num_kv_heads * dim
    return {
        "q_proj": _Rows(heads.total_heads * dim, (Piece(heads.first_head * dim, q_length, 0),)),
        "k_proj": _Rows(heads.total_kv_heads * dim, (Piece(heads.first_kv_head * dim, kv_length, q_length),)),
        "v_proj": _Rows(
            heads.total_kv_heads * dim, (Piece(heads.first_kv_head * dim, kv_length, q_length + kv_length),)
        ),
    }


def _stack(tensors: Iterable[_Rows]) -> _Rows:
    """The same rows where the checkpoint has these tensors one below the other in a single one."""
    total = 0
    pieces: list[Piece] = []
    for rows in tensors:
        pieces += [piece._replace(source_start=piece.source_start + total) for piece in rows.pieces]
        total += rows.total
    return _Rows(total, tuple(pieces))


class RowParallelLinear(PackedLayer):
    """A layer whose inputs are sharded, as a column-parallel layer leaves them; every rank gets the sum."""

    def __init__(self, in_features: int, out_features: int, *, bias: bool, placement: Placement) -> None:
        super().__init__()
        self.group = placement.group
        start, stop = shard_bounds(in_features, placement.group)
        part = Part((out_features, in_features), (Piece(start, stop - start, 0),), dim=1)
        self.weight: nn.Parameter = Weight(
            (out_features, stop - start), {"": part}, placement.dtype, placement.device
        )
        self.bias: Weight | None = None
        if bias:
            whole = {"": Part.whole(out_features)}
            self.bias = Weight((out_features,), whole, placement.dtype, placement.device)

    def pack(self) -> None:
        """Pack the weight."""
        self.weight = packed(self.weight)

    def own_part(self, x: Tensor) -> Tensor:
        """[n, in of this rank] -> [n, out], this rank's part of the sum over the ranks; without a bias."""
        assert self.bias is None
        return linear(x, self.weight)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in of this rank] -> [n, out]."""
        summed = self.group.all_reduce(linear(x, self.weight))
        return summed if self.bias is None else summed.add_(self.bias)

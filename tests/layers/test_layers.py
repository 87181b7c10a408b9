"""Layers that are sharded over ranks that need not exist: each shard is computed here, and the parts put together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chiasm.dist.group import SOLO, Group
from chiasm.layers.embedding import OutputProjection, VocabEmbedding
from chiasm.layers.linear import BlockConvolution, ColumnParallelLinear, GateUpLinear, QKVLinear, RowParallelLinear
from chiasm.layers.patch_embedding import PatchEmbedding, PixelNormalisation
from chiasm.layers.shards import split_heads
from chiasm.layers.weight import Placement, Weight
from tests.rounding import assert_equal_but_for_rounding

SIZES = [1, 2, 4]


class InMemory:
    """A checkpoint tensor that is not on disk."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self._tensor.shape)

    def read(self, dim: int, start: int, length: int) -> Tensor:
        return self._tensor.narrow(dim, start, length)


class OneOfMany(Group):
    """A rank whose others are missing: a sum over the ranks gives its own part, which the test adds up."""

    def all_reduce(self, x: Tensor) -> Tensor:
        return x

    def all_gather_last(self, x: Tensor) -> Tensor:
        return x


def placements(size: int) -> list[Placement]:
    return [Placement(OneOfMany(rank, size), torch.float64, torch.device("cpu")) for rank in range(size)]


def fill(weight: nn.Parameter | None, **tensors: Tensor) -> None:
    """Load the parts; ``own`` stands for the part without a name."""
    assert isinstance(weight, Weight)
    assert {name if name != "own" else "" for name in tensors} == set(weight.parts)
    for name, tensor in tensors.items():
        weight.load("" if name == "own" else name, InMemory(tensor))


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def close(computed: Tensor, expected: Tensor) -> None:
    assert_equal_but_for_rounding(computed, expected, most_epsilons=64)


@pytest.mark.parametrize("size", SIZES)
def test_column_shards_join_to_the_whole(size: int) -> None:
    x, weight, bias = random(3, 6), random(20, 6), random(20)

    def shard(placement: Placement) -> Tensor:
        layer = ColumnParallelLinear(6, 20, bias=True, placement=placement)
        fill(layer.weight, own=weight)
        fill(layer.bias, own=bias)
        return layer(x)

    close(torch.cat([shard(placement) for placement in placements(size)], dim=1), F.linear(x, weight, bias))


@pytest.mark.parametrize("size", SIZES)
def test_a_convolution_over_blocks_is_one_over_the_picture(size: int) -> None:
    picture, weight, bias = random(1, 5, 4, 6), random(20, 5, 2, 2), random(20)
    expected = F.conv2d(picture, weight, bias, stride=2)[0].permute(1, 2, 0).reshape(-1, 20)
    patches = picture[0].reshape(5, 2, 2, 3, 2).permute(1, 3, 2, 4, 0).reshape(-1, 5)

    def shard(placement: Placement) -> Tensor:
        layer = BlockConvolution(5, 20, 2, placement=placement)
        fill(layer.weight, own=weight)
        fill(layer.bias, own=bias)
        return layer(patches)

    close(torch.cat([shard(placement) for placement in placements(size)], dim=1), expected)


@pytest.mark.parametrize("size", SIZES)
def test_row_shards_add_up_to_the_whole(size: int) -> None:
    x, weight = random(3, 20), random(6, 20)
    total = torch.zeros(3, 6, dtype=torch.float64)
    first = 0
    for placement in placements(size):
        layer = RowParallelLinear(20, 6, bias=False, placement=placement)
        fill(layer.weight, own=weight)
        width = layer.weight.shape[1]
        total += layer(x[:, first : first + width])
        first += width
    close(total, F.linear(x, weight))


def test_the_bias_of_row_shards_is_added_once() -> None:
    layer = RowParallelLinear(4, 2, bias=True, placement=placements(2)[1])
    fill(layer.weight, own=torch.zeros(2, 4, dtype=torch.float64))
    fill(layer.bias, own=torch.ones(2, dtype=torch.float64))
    assert layer(random(3, 2)).tolist() == [[1, 1]] * 3  # of its own: what is summed holds no bias


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fused", [False, True])
def test_gate_and_up_are_sharded_alike(size: int, fused: bool) -> None:
    x, gate, up = random(3, 6), random(20, 6), random(20, 6)
    shards = []
    for placement in placements(size):
        layer = GateUpLinear(6, 20, bias=False, placement=placement, fused=fused)
        tensors = {"own": torch.cat([gate, up])} if fused else {"gate_proj": gate, "up_proj": up}
        fill(layer.weight, **tensors)
        shards.append(layer(x))
    close(torch.cat(shards, dim=1), F.silu(F.linear(x, gate)) * F.linear(x, up))


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("fused", [False, True])
def test_each_rank_has_its_query_heads_and_theirs(size: int, fused: bool) -> None:
    x, q, k, v = random(3, 6), random(8 * 4, 6), random(2 * 4, 6), random(2 * 4, 6)
    queries = []
    for placement in placements(size):
        heads = split_heads(8, 2, 4, placement.group)
        layer = QKVLinear(6, heads, bias=False, placement=placement, fused=fused)
        tensors = {"own": torch.cat([q, k, v])} if fused else {"q_proj": q, "k_proj": k, "v_proj": v}
        fill(layer.weight, **tensors)
        own_q, own_k, own_v = layer(x)
        kv_heads = slice(heads.first_kv_head, heads.first_kv_head + heads.num_kv_heads)
        close(own_k, F.linear(x, k).view(3, 2, 4)[:, kv_heads])
        close(own_v, F.linear(x, v).view(3, 2, 4)[:, kv_heads])
        queries.append(own_q)
    close(torch.cat(queries, dim=1), F.linear(x, q).view(3, 8, 4))


def sum_over(size: int, shard: Callable[[Placement], Tensor]) -> Tensor:
    return torch.stack([shard(placement) for placement in placements(size)]).sum(0)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
def test_embedding_shards_add_up_even_where_the_vocabulary_does_not_divide(size: int) -> None:
    table, ids = random(13, 5), torch.arange(13)

    def shard(placement: Placement) -> Tensor:
        layer = VocabEmbedding(13, 5, placement)
        fill(layer.weight, own=table)
        return layer(ids)

    assert torch.equal(sum_over(size, shard), table)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_padding_rows_of_the_vocabulary_are_zero(size: int) -> None:
    layer = VocabEmbedding(13, 5, placements(size)[-1])
    fill(layer.weight, own=random(13, 5))
    num_real = max(0, 13 - (size - 1) * -(-13 // size))
    assert not layer.weight[num_real:].any()


@pytest.mark.parametrize("size", [1, 3])
def test_logits_are_cut_to_the_vocabulary_and_float32(size: int) -> None:
    table, hidden = random(13, 5), random(2, 5)

    def shard(placement: Placement) -> Tensor:
        layer = OutputProjection(13, 5, placement)
        fill(layer.weight, own=table)
        return layer(hidden)

    logits = torch.cat([shard(placement) for placement in placements(size)], dim=1)[:, :13]
    assert logits.dtype == torch.float32
    assert_equal_but_for_rounding(logits, F.linear(hidden, table))


def test_a_tied_output_projection_has_no_weight_of_its_own() -> None:
    embedding = VocabEmbedding(13, 5, placements(1)[0])
    assert OutputProjection(13, 5, placements(1)[0], embedding).weight is embedding.weight


NORMALISATIONS = [
    PixelNormalisation((1 / 70, 1 / 66, 1 / 71), (-1.8, -1.7, -1.5)),
    PixelNormalisation((1.0, 1.0, 1.0), (0.0, 0.0, 0.0)),
]


@pytest.mark.parametrize("normalisation", NORMALISATIONS, ids=["usual", "raw bytes"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("bias", [None, random(10)], ids=["no bias", "bias"])
def test_patch_embedding_equals_the_convolution_of_normalised_pixels(
    normalisation: PixelNormalisation, dtype: torch.dtype, bias: Tensor | None
) -> None:
    kernel = random(10, 3, 2, 4, 4)
    pixels = torch.randint(0, 256, (7, 3 * 2 * 4 * 4), dtype=torch.uint8)
    layer = patch_embedding(kernel, normalisation, dtype, bias)
    scale, shift = (torch.tensor(values, dtype=torch.float64)[:, None] for values in (
        normalisation.scale, normalisation.shift
    ))  # fmt: skip
    normalised = (pixels.double().view(7, 3, -1) * scale + shift).view(7, 3, 2, 4, 4)
    expected = F.conv3d(normalised, kernel, bias, stride=(2, 4, 4)).flatten(1)
    assert_equal_but_for_rounding(layer(pixels), expected)


def test_bytes_lose_nothing_in_bfloat16() -> None:
    """A kernel that picks one byte out gives that byte, for all 256 of them."""
    kernel = torch.zeros(1, 3, 1, 1, 1)
    kernel[0, 1] = 1
    layer = patch_embedding(kernel, PixelNormalisation((1.0,) * 3, (-128.0,) * 3), torch.bfloat16)
    pixels = torch.zeros(256, 3, dtype=torch.uint8)
    pixels[:, 1] = torch.arange(256)
    assert layer(pixels).flatten().tolist() == list(range(-128, 128))


def patch_embedding(
    kernel: Tensor, normalisation: PixelNormalisation, dtype: torch.dtype, bias: Tensor | None = None
) -> PatchEmbedding:
    placement = Placement(SOLO, dtype, torch.device("cpu"))
    layer = PatchEmbedding(tuple(kernel.shape), normalisation, placement, bias=bias is not None)
    fill(layer.weight, own=kernel)
    if bias is not None:
        fill(layer.bias, own=bias)
    layer.fold_normalisation()
    return layer

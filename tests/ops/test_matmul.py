"""Packed products against plain ones."""

from __future__ import annotations

import platform

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chiasm.ops.matmul import Activation, is_worth_packing, linear, linear_times, pack
from tests.rounding import assert_equal_but_for_rounding

ACTIVATED = {
    "none": lambda x: x,
    "silu": F.silu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
}


@pytest.fixture
def weight() -> Tensor:
    return torch.randn(512, 320, generator=torch.Generator().manual_seed(0)) / 18


def rows(count: int, width: int = 320) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count))


def needs_packing(weight: Tensor) -> None:
    if not is_worth_packing(weight):
        pytest.skip(f"oneDNN packs no {str(weight.dtype).removeprefix('torch.')} on this CPU")


def needs_known_kernels() -> None:
    """oneDNN promises no order of additions: it was found in the kernels that it has for these CPUs."""
    if platform.machine() != "x86_64" or torch.cpu._is_amx_tile_supported():
        pytest.skip("the bits of oneDNN's kernels are known of AVX2 and AVX-512 only")


@pytest.mark.parametrize("activation", ACTIVATED)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_packed_equals_plain(weight: Tensor, count: int, has_bias: bool, activation: Activation) -> None:
    x, bias = rows(count), rows(1, 512)[0] if has_bias else None
    expected = ACTIVATED[activation](F.linear(x.double(), weight.double(), None if bias is None else bias.double()))
    for matrix in (weight, pack(weight)):
        assert_equal_but_for_rounding(linear(x, matrix, bias, activation), expected)


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_packed_product_times_a_factor(weight: Tensor, count: int) -> None:
    x, factor, bias = rows(count), rows(count, 512), rows(1, 512)[0]
    expected = F.linear(x.double(), weight.double(), bias.double()) * factor
    for matrix in (weight, pack(weight)):
        assert_equal_but_for_rounding(linear_times(x, matrix, bias, factor), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [320, 1000, 1024, 1025, 2047, 4864])
def test_a_row_is_the_same_beside_any_others(width: int, dtype: torch.dtype) -> None:
    plain = (rows(512, width) / width**0.5).to(dtype)
    needs_packing(plain)
    needs_known_kernels()
    x, matrix, factor = rows(300, width).to(dtype), pack(plain), rows(300, 512).to(dtype)
    whole, times = linear(x, matrix, None, "silu"), linear_times(x, matrix, None, factor)
    for start, stop in ((0, 2), (5, 13), (40, 105), (299 - 128, 299)):
        assert torch.equal(linear(x[start:stop], matrix, None, "silu"), whole[start:stop])
        assert torch.equal(linear_times(x[start:stop], matrix, None, factor[start:stop]), times[start:stop])


@pytest.mark.parametrize("width", [320, 1000, 1024])
def test_a_row_alone_is_the_same_up_to_1024_columns_in_float32(width: int) -> None:
    plain = rows(512, width) / width**0.5
    needs_packing(plain)
    needs_known_kernels()
    x, matrix = rows(300, width), pack(plain)
    whole = linear(x, matrix)
    assert all(torch.equal(linear(x[row : row + 1], matrix)[0], whole[row]) for row in (0, 1, 150, 299))


def test_rows_may_be_columns_of_something_wider(weight: Tensor) -> None:
    wide = rows(9, 640)
    expected = F.linear(wide[:, 320:].double(), weight.double())
    assert_equal_but_for_rounding(linear(wide[:, 320:], pack(weight)), expected)


def test_what_gains_nothing_is_left_as_it_is(weight: Tensor) -> None:
    needs_packing(weight)
    for plain in (weight.double(), weight.half(), weight[:8].clone()):
        assert pack(plain) is plain

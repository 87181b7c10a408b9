"""Packed products against plain ones."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chiasm.ops.matmul import Activation, is_worth_packing, linear, linear_times, pack

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
        pytest.skip("this machine's torch has no oneDNN")


@pytest.mark.parametrize("activation", ACTIVATED)
@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_packed_equals_plain(weight: Tensor, count: int, has_bias: bool, activation: Activation) -> None:
    x, bias = rows(count), rows(1, 512)[0] if has_bias else None
    expected = ACTIVATED[activation](F.linear(x.double(), weight.double(), None if bias is None else bias.double()))
    for matrix in (weight, pack(weight)):
        torch.testing.assert_close(linear(x, matrix, bias, activation).double(), expected, atol=2e-6, rtol=1e-5)


@pytest.mark.parametrize("count", [0, 1, 7, 300])
def test_packed_product_times_a_factor(weight: Tensor, count: int) -> None:
    x, factor, bias = rows(count), rows(count, 512), rows(1, 512)[0]
    expected = (F.linear(x, weight, bias) * factor).double()
    for matrix in (weight, pack(weight)):
        torch.testing.assert_close(linear_times(x, matrix, bias, factor).double(), expected, atol=4e-6, rtol=1e-5)


def test_a_row_is_the_same_in_any_batch(weight: Tensor) -> None:
    needs_packing(weight)
    x, matrix = rows(300), pack(weight)
    whole = linear(x, matrix)
    for start, stop in ((0, 1), (5, 13), (100, 300)):
        assert torch.equal(linear(x[start:stop], matrix), whole[start:stop])


def test_rows_may_be_columns_of_something_wider(weight: Tensor) -> None:
    wide = rows(9, 640)
    assert torch.equal(linear(wide[:, 320:], pack(weight)), linear(wide[:, 320:].contiguous(), pack(weight)))


def test_what_gains_nothing_is_left_as_it_is(weight: Tensor) -> None:
    needs_packing(weight)
    for plain in (weight.double(), weight.half(), weight[:8].clone()):
        assert pack(plain) is plain

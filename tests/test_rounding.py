"""The measure of rounding lets another order of additions pass, and no error."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tests.rounding import assert_equal_but_for_rounding

ROWS, TERMS, COLUMNS = 12, 4096, 48
DTYPES = (torch.float32, torch.float64)
SIZES = (1e-12, 1.0, 1e12)


def factors(size: float, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Rows [ROWS, TERMS] and a matrix [TERMS, COLUMNS] whose product is about so large."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(ROWS, TERMS, generator=generator, dtype=torch.float64)
    matrix = torch.randn(TERMS, COLUMNS, generator=generator, dtype=torch.float64)
    return (rows * size / TERMS**0.5).to(dtype), matrix.to(dtype)


def is_refused(computed: Tensor, expected: Tensor) -> bool:
    try:
        assert_equal_but_for_rounding(computed, expected)
    except AssertionError:
        return True
    return False


def parts(count: int) -> Callable[[Tensor, Tensor], Tensor]:
    """A product of which each of so many ranks has a part of the terms."""

    def product(rows: Tensor, matrix: Tensor) -> Tensor:
        shares = zip(rows.chunk(count, 1), matrix.chunk(count, 0), strict=True)
        return torch.stack([own @ share for own, share in shares]).sum(0)

    return product


ORDERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "backwards": lambda rows, matrix: rows.flip(1) @ matrix.flip(0),
    "2 ranks": parts(2),
    "7 ranks": parts(7),
    "one by one": lambda rows, matrix: sum(
        (rows[:, [i]] * matrix[[i]] for i in range(TERMS)), rows.new_zeros(ROWS, COLUMNS)
    ),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("order", ORDERS)
def test_another_order_of_additions_passes(order: str, size: float, dtype: torch.dtype) -> None:
    rows, matrix = factors(size, dtype)
    assert_equal_but_for_rounding(ORDERS[order](rows, matrix), rows @ matrix)
    if dtype == torch.float32:
        assert_equal_but_for_rounding(ORDERS[order](rows, matrix), rows.double() @ matrix.double())


def changed(index: int | tuple[int, int], change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A change of a row or of one value."""

    def apply(result: Tensor) -> Tensor:
        result = result.clone()
        result[index] = change(result[index])
        return result

    return apply


ERRORS: dict[str, Callable[[Tensor], Tensor]] = {
    "two rows are swapped": lambda result: result[[1, 0, *range(2, ROWS)]],
    "two columns are swapped": lambda result: result[:, [1, 0, *range(2, COLUMNS)]],
    "a column is dropped": lambda result: torch.cat([result[:, :-1], torch.zeros_like(result[:, -1:])], 1),
    "all columns move by one": lambda result: result.roll(1, 1),
    "a row is lost": changed(5, torch.zeros_like),
    "a row is another's": lambda result: result[[0, 1, 2, 2, *range(4, ROWS)]],
    "a row is too large by a thousandth": changed(7, lambda row: row * 1.001),
    "a value is NaN": changed((3, 4), lambda value: value * torch.nan),
    "a value is infinite": changed((3, 4), lambda value: value * torch.inf),
    "the sign is wrong": lambda result: -result,
    "a half is rounded to bfloat16": lambda result: torch.cat([result[:6], result[6:].bfloat16().to(result.dtype)]),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("error", ERRORS)
def test_an_error_is_caught_whatever_the_size(error: str, size: float, dtype: torch.dtype) -> None:
    rows, matrix = factors(size, dtype)
    result = rows @ matrix
    assert is_refused(ERRORS[error](result), result)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", SIZES)
def test_one_missing_term_of_thousands_is_caught(size: float, dtype: torch.dtype) -> None:
    """Of one row, of one column, and a rank's bias that is added twice."""
    rows, matrix = factors(size, dtype)
    expected = rows @ matrix
    without = rows.clone()
    without[2, TERMS // 2] = 0
    assert is_refused(without @ matrix, expected)
    thinned = matrix.clone()
    thinned[TERMS // 3, 5] = 0
    assert is_refused(rows @ thinned, expected)
    bias = expected.std() / 100
    assert is_refused(expected + 2 * bias, expected + bias)


@pytest.mark.parametrize("error", ERRORS)
def test_large_rows_hide_no_error_of_small_ones(error: str) -> None:
    """Each row has a size of its own, from 1e-6 to 1e5, and what is wrong is in a single one."""
    rows, matrix = factors(1.0, torch.float32)
    expected = (rows @ matrix) * 10.0 ** torch.arange(-6, ROWS - 6)[:, None]
    all_wrong = ERRORS[error](expected)
    changed_rows = [row for row in range(ROWS) if not torch.equal(all_wrong[row], expected[row])]
    assert changed_rows
    for row in changed_rows:
        wrong = expected.clone()
        wrong[row] = all_wrong[row]
        assert is_refused(wrong, expected), row


def test_zeros_must_be_zeros() -> None:
    zeros = torch.zeros(2, 3)
    assert_equal_but_for_rounding(zeros, zeros)
    assert is_refused(zeros + 1e-30, zeros)


@pytest.mark.parametrize(
    ("computed", "expected", "words"),
    [
        (torch.ones(2, 3), torch.ones(1, 3), r"the shape is \[2, 3\], not \[1, 3\]"),
        (torch.ones(3), torch.ones(3, dtype=torch.bfloat16), "the type is torch.float32, not torch.bfloat16"),
        (torch.ones(3, dtype=torch.float64), torch.ones(3), "the type is torch.float64, not torch.float32"),
        (torch.ones(3), torch.full((3,), torch.inf), "not finite"),
        (torch.ones(3, dtype=torch.bfloat16), torch.ones(3, dtype=torch.bfloat16), "hide errors"),
        (torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]), r"1 of 4 .* \[1, 1\]: 5.0 "),
        (torch.tensor([1.0, torch.nan]), torch.ones(2), r"\[1\]: nan instead of 1.0, inf"),
    ],
)
def test_what_is_wrong_is_told(computed: Tensor, expected: Tensor, words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        assert_equal_but_for_rounding(computed, expected)


def test_nothing_is_equal_to_nothing() -> None:
    assert_equal_but_for_rounding(torch.empty(0, 5), torch.empty(0, 5))


def test_fewer_epsilons_make_it_stricter() -> None:
    expected = torch.ones(4, dtype=torch.bfloat16)
    assert_equal_but_for_rounding(expected * 1.0078125, expected, most_epsilons=2)
    with pytest.raises(AssertionError, match="4 of 4"):
        assert_equal_but_for_rounding(expected * 1.0234375, expected, most_epsilons=2)

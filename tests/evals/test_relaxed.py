"""ChartQA's relaxed accuracy on a table of cases."""

import pytest

from chiasm.evals.relaxed import is_right


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("34", "34"), ("34.", "34"), (" 34\n", "34"), ("95", "100"), ("105", "100"), ("34.0", "34"),
        ("1,000", "1000"), ("35%", "35%"), ("0.35", "35%"), ("0", "0"), ("-10", "-10"), ("-9.6", "-10"),
        ("Rome", "Rome"), ("rome", "Rome"), ("Rome.", "Rome"), ("Sales  2019", "Sales 2019"), ("Yes", "yes"),
    ],
)  # fmt: skip
def test_counts(answer: str, expected: str) -> None:
    assert is_right(answer, expected)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("94", "100"), ("106", "100"), ("", "34"), ("Rome", "34"), ("34", "Rome"), ("1", "0"), ("10", "-10"),
        ("Romes", "Rome"), ("nan", "34"), ("inf", "34"), ("No", "Yes"), ("35", "35%"),
    ],
)  # fmt: skip
def test_does_not_count(answer: str, expected: str) -> None:
    assert not is_right(answer, expected)

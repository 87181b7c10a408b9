"""When a difference between repeated runs counts."""

from __future__ import annotations

import pytest

from chiasm.bench.spread import Spread, hold_against


def test_noise_is_half_of_the_range_over_the_median() -> None:
    assert Spread([9.0, 10.0, 13.0]).noise == pytest.approx(0.2)
    assert Spread([9.0]).noise is None
    assert Spread([0.0, 0.0]).noise is None


@pytest.mark.parametrize(
    ("own", "more_is_better", "verdict"),
    [
        ([8.0, 9.0], False, "better"),
        ([8.0, 9.0], True, "worse"),
        ([13.0, 14.0], False, "worse"),
        ([13.0, 14.0], True, "better"),
        ([9.0, 11.0], False, "same"),
        ([12.0, 14.0], True, "same"),  # they touch
        ([20.0], False, "unknown"),
    ],
)
def test_a_difference_counts_where_no_run_lies_among_the_others(
    own: list[float], more_is_better: bool, verdict: str
) -> None:
    difference = hold_against(Spread(own), Spread([10.0, 12.0]), more_is_better=more_is_better)
    assert difference.verdict == verdict
    assert difference.ratio == pytest.approx(Spread(own).median / 11)


def test_a_base_of_zero_has_no_ratio() -> None:
    assert hold_against(Spread([1.0, 2.0]), Spread([0.0, 0.0]), more_is_better=True) == (None, None, "unknown")

"""What the next step takes by those before."""

from __future__ import annotations

import pytest

from chiasm.engine.scheduler.step_times import FEWEST_TOKENS, StepTimes


def measured(steps: list[tuple[int, float]], *, is_decoding: bool = True) -> StepTimes:
    times = StepTimes()
    for num_tokens, seconds in steps:
        times.add_compute(seconds, num_prompt_tokens=num_tokens, is_decoding=is_decoding, is_encoding=False)
    return times


DECODE = [(0, 0.01)] * 5


def test_nothing_is_known_at_first() -> None:
    times = StepTimes()
    assert (times.decode_seconds, times.token_seconds, times.fixed_seconds, times.slowness) == (None, 0.0, 0.0, 1.0)


def test_decoding_takes_the_median_whatever_was_disturbed() -> None:
    assert measured([(0, 9.0), (0, 0.01), (0, 0.02), (0, 0.01), (0, 0.01)]).decode_seconds == 0.01


def test_steps_that_read_as_well_bound_what_decoding_takes() -> None:
    times = measured([(5, 0.03), (5, 0.02), (5, 0.05)])
    assert (times.decode_seconds, times.is_decode_known) == (0.02, False)


def test_reading_has_a_fixed_time_and_one_for_each_token() -> None:
    sizes = (100, 200, 400, 300)
    times = measured(DECODE + [(n, 0.01 + 0.03 + 2e-4 * n) for n in sizes] + [(250, 9.0)])
    assert times.token_seconds == pytest.approx(2e-4)
    assert times.fixed_seconds == pytest.approx(0.03)
    assert times.num_readable(0.07) == pytest.approx(200, abs=1)


def test_no_chunk_is_so_small_that_most_of_its_time_is_the_fixed_one() -> None:
    times = measured(DECODE + [(n, 0.01 + 0.03 + 2e-4 * n) for n in (100, 200, 400)])
    assert times.num_readable(0.01) == pytest.approx(150, abs=1)


def test_chunks_shrink_by_halves_until_two_sizes_tell_what_is_fixed() -> None:
    times = measured([*DECODE, (1000, 0.01 + 0.05)])
    assert times.num_readable(0.01) == 500
    times.add_compute(0.01 + 0.05, num_prompt_tokens=100, is_decoding=True, is_encoding=False)
    times.add_compute(0.01 + 0.06, num_prompt_tokens=1100, is_decoding=True, is_encoding=False)
    assert times.token_seconds == pytest.approx(1e-5)


def test_few_tokens_are_always_read() -> None:
    times = measured(DECODE + [(n, 0.01 + 1e-3 * n) for n in (20, 40)])
    assert times.num_readable(0.001) == FEWEST_TOKENS


def test_a_step_that_encodes_as_well_tells_nothing_of_decoding() -> None:
    times = StepTimes()
    times.add_compute(0.5, num_prompt_tokens=0, is_decoding=True, is_encoding=True)
    assert times.decode_seconds is None

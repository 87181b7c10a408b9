"""Latencies and throughputs of loads that were computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from chiasm.bench.serve.arrivals import Arrivals, RampUp
from chiasm.bench.serve.metrics import Distribution, Outcome, summarise
from chiasm.errors import UserError


def outcome(sent: float, *events: float, prompt: int = 10, tokens: int | None = None, error: str = "") -> Outcome:
    return Outcome(sent, 0.0, list(events), len(events), "", prompt, tokens, error)


def test_the_moments_are_those_that_vllms_benchmark_has_with_the_same_seed() -> None:
    # NumPy's global generator with seed 7 and vLLM 0.32's get_request, three requests at 2 a second.
    assert Arrivals(2.0).times(3, 7) == pytest.approx([0.054866, 1.101186, 1.5], abs=1e-6)


def test_one_answer() -> None:
    # The role comes with the first token, 0.5 s after sending; then a token every 0.1 s.
    one = outcome(7.0, 0.5, 0.5, 0.6, 0.7, tokens=3)
    assert one.ttft == 0.5
    assert one.e2el == 0.7
    assert one.itl == pytest.approx([0.0, 0.1, 0.1])
    assert one.tpot == pytest.approx(0.1)


def test_tokens_are_those_that_the_server_counts_and_events_where_it_does_not() -> None:
    assert outcome(0.0, 1.0, 2.0, tokens=5).num_tokens == 5
    assert outcome(0.0, 1.0, 2.0).num_tokens == 2
    assert outcome(0.0, 1.0, tokens=5, error="broken off").num_tokens == 0


def test_an_answer_of_one_token_has_no_time_per_token() -> None:
    found = summarise([outcome(0.0, 0.3, 0.3, tokens=1), outcome(0.0, 1.0, 2.0, tokens=2)], 2.0)
    assert found.latencies["tpot"].mean == pytest.approx(1000)


def test_tokens_that_came_in_one_event_took_no_time() -> None:
    found = summarise([outcome(0.0, 0.3, tokens=4), outcome(0.0, 1.0, 2.0, tokens=2)], 2.0)
    assert found.latencies["tpot"].mean == pytest.approx(500)


def test_throughput_counts_what_succeeded_over_the_whole_time() -> None:
    done = [outcome(0.0, 1.0, 2.0, prompt=30, tokens=4), outcome(1.0, 1.0, 3.0, prompt=50, tokens=6)]
    found = summarise([*done, outcome(0.0, prompt=99, error="status 500")], 4.0)
    assert (found.completed, found.failed) == (2, 1)
    assert (found.total_input_tokens, found.total_output_tokens) == (80, 10)
    assert found.request_throughput == 0.5
    assert found.output_throughput == 2.5
    assert found.total_token_throughput == 22.5
    assert found.request_goodput is None
    assert found.latencies["e2el"].mean == pytest.approx(2500)


def test_peaks_are_of_whole_seconds_from_the_first_sending() -> None:
    # Seconds 0..3: events 2 (0.5, 0.9), 1 (1.5), 0, 1 (3.2); requests 1, 2, 1, 1.
    found = summarise([outcome(10.0, 0.5, 0.9, 1.5, tokens=3), outcome(11.2, 2.0, tokens=1)], 4.0)
    assert found.max_output_tokens_per_s == 2
    assert found.max_concurrent_requests == 2


@pytest.mark.parametrize(
    ("objectives", "good"),
    [
        ({"ttft": 500.0}, 1),
        ({"ttft": 2000.0}, 2),
        ({"ttft": 2000.0, "tpot": 100.0}, 1),
        ({"e2el": 699.0}, 0),
        ({"tpot": 100.5}, 1),
    ],
)
def test_goodput_counts_requests_that_keep_every_objective(objectives: dict[str, float], good: int) -> None:
    done = [outcome(0.0, 0.5, 0.6, 0.7, tokens=3), outcome(0.0, 1.0, 2.0, tokens=2)]
    assert summarise(done, 2.0, objectives=objectives).request_goodput == good / 2


def test_an_answer_of_one_token_keeps_every_objective_for_the_time_per_token() -> None:
    assert summarise([outcome(0.0, 0.3, tokens=1)], 1.0, objectives={"tpot": 1.0}).request_goodput == 1


def test_gaps_of_a_growing_rate_have_its_mean_whatever_the_burstiness() -> None:
    [*_, last] = Arrivals(burstiness=4.0, ramp_up=RampUp("linear", 10, 10)).times(2000, 0)
    assert last == pytest.approx(200, rel=0.05)


def test_a_distribution_is_in_milliseconds_with_the_percentiles_asked_for() -> None:
    found = Distribution.of([0.001, 0.002, 0.003, 0.010], (50, 90))
    assert found.mean == pytest.approx(4.0)
    assert found.median == pytest.approx(2.5)
    assert found.std == pytest.approx(math.sqrt((9 + 4 + 1 + 36) / 4))
    assert dict(found.percentiles) == pytest.approx({50: 2.5, 90: 7.9})  # linear between the two nearest


def test_a_load_without_an_answer_has_figures_of_zero() -> None:
    found = summarise([outcome(0.0, error="refused")], 1.0)
    assert (found.completed, found.failed, found.max_output_tokens_per_s) == (0, 1, 0)
    assert found.latencies["ttft"] == Distribution(0.0, 0.0, 0.0, ((99.0, 0.0),))


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert Arrivals().times(3, 0) == [0, 0, 0]


@pytest.mark.parametrize("burstiness", [0.2, 1.0, 5.0, math.inf])
def test_the_last_request_comes_when_the_rate_says(burstiness: float) -> None:
    times = Arrivals(4.0, burstiness).times(200, 1)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(50)


def test_a_burst_without_gaps_comes_at_once() -> None:
    assert Arrivals(4.0, 1e-9).times(3, 0) == [0, 0, 0]


def test_burstiness_is_how_even_the_gaps_are() -> None:
    def spread(burstiness: float) -> float:
        gaps = np.diff(Arrivals(10.0, burstiness).times(4000, 2))
        return float(gaps.std() / gaps.mean())

    # The coefficient of variation of a gamma distribution of shape k is 1 / sqrt(k).
    for burstiness in (0.25, 1.0, 4.0):
        assert spread(burstiness) == pytest.approx(1 / math.sqrt(burstiness), rel=0.1)
    assert spread(math.inf) == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize(
    ("ramp_up", "rates"),
    [(RampUp("linear", 1, 5), [1, 3, 5]), (RampUp("exponential", 1, 16), [1, 4, 16])],
)
def test_a_rate_grows_from_the_first_request_to_the_last(ramp_up: RampUp, rates: list[float]) -> None:
    assert ramp_up.rates(3) == pytest.approx(rates)
    times = Arrivals(burstiness=math.inf, ramp_up=ramp_up).times(3, 0)
    assert np.diff([0, *times]) == pytest.approx([1 / rate for rate in rates])


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"request_rate": 0.0}, "request_rate"),
        ({"request_rate": math.nan}, "request_rate"),
        ({"burstiness": -1.0}, "burstiness"),
        ({"request_rate": 5.0, "ramp_up": RampUp("linear", 1, 2)}, "request_rate"),
        ({"ramp_up": RampUp("linear", 3, 2)}, "ramp_up_start_rps"),
    ],
)
def test_bad_arrivals_are_refused_by_name(settings: dict[str, object], param: str) -> None:
    with pytest.raises(UserError) as caught:
        Arrivals(**settings)  # type: ignore[arg-type]
    assert caught.value.param == param

"""What users compare of a load: the definitions of vLLM's ``bench serve``, so that figures can stand side by side.

- TTFT: from sending a request to the first event of its answer that has a choice.
- ITL: between two such events; an answer's role may come in one of its own.
- E2EL: from sending to the last such event; the chunk with the usage doesn't count.
- TPOT: (E2EL - TTFT) / (tokens - 1), of answers with more than one token.
- Tokens are those that the server says it counted; events with text where it says nothing.
- Throughput: what the successful requests had, over the time from the first sending to the last answer.
- Peaks: the largest second, counted from the first request on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np

METRICS = ("ttft", "tpot", "itl", "e2el")
"""Latencies by the names that flags and JSON files have for them."""
GOODPUT_METRICS = ("ttft", "tpot", "e2el")


@dataclass
class Outcome:
    """What came of one request; times are seconds, ``sent`` by ``time.perf_counter``.

    Attributes:
        sent: when it was.
        queued: how long the client held it back before.
        events: when each event with a choice came, counted from ``sent``.
        num_texts: how many of these had text.
        text: of the answer, reasoning included.
        prompt_tokens: as the server counted.
        completion_tokens: likewise; None where it did not say.
        error: why it failed; empty if it did not.
    """

    sent: float = 0.0
    queued: float = 0.0
    events: list[float] = field(default_factory=list)
    num_texts: int = 0
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int | None = None
    error: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether there is an answer."""
        return not self.error

    @property
    def ttft(self) -> float:
        """Seconds to the first event; 0 without one."""
        return self.events[0] if self.events else 0.0

    @property
    def e2el(self) -> float:
        """Seconds to the last event; 0 without one."""
        return self.events[-1] if self.events else 0.0

    @property
    def itl(self) -> list[float]:
        """Seconds between events."""
        return [float(gap) for gap in np.diff(self.events)]

    @property
    def num_tokens(self) -> int:
        """Of the answer; by its events with text where the server does not count."""
        if not self.succeeded:
            return 0
        return self.num_texts if self.completion_tokens is None else self.completion_tokens

    @property
    def tpot(self) -> float | None:
        """Seconds a token after the first; None of answers that have no second."""
        return (self.e2el - self.ttft) / (self.num_tokens - 1) if self.num_tokens > 1 else None


class Distribution(msgspec.Struct, frozen=True):
    """Of one latency, in milliseconds; all are 0 where there is nothing.

    Attributes:
        mean: of all values.
        median: likewise.
        std: standard deviation, of the population.
        percentiles: (percent, value) as they were asked for.
    """

    mean: float
    median: float
    std: float
    percentiles: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, seconds: Sequence[float], percents: Iterable[float]) -> Distribution:
        """Of values in seconds."""
        values = 1e3 * np.asarray(seconds if len(seconds) else [0.0])
        percentiles = tuple((percent, float(np.percentile(values, percent))) for percent in percents)
        return cls(float(values.mean()), float(np.median(values)), float(values.std()), percentiles)


class Summary(msgspec.Struct, frozen=True):
    """Of all requests of a load; throughputs are per second.

    Attributes:
        duration: seconds from the first sending to the last answer.
        completed: successful requests.
        failed: the others.
        total_input_tokens: of the successful ones.
        total_output_tokens: likewise.
        request_throughput: requests.
        request_goodput: requests that kept every objective; None without any.
        output_throughput: generated tokens.
        total_token_throughput: tokens of prompts and answers.
        max_output_tokens_per_s: in the second with most events.
        max_concurrent_requests: in the second with most requests under way.
        latencies: by their names in ``METRICS``.
    """

    duration: float
    completed: int
    failed: int
    total_input_tokens: int
    total_output_tokens: int
    request_throughput: float
    request_goodput: float | None
    output_throughput: float
    total_token_throughput: float
    max_output_tokens_per_s: float
    max_concurrent_requests: int
    latencies: dict[str, Distribution]


def summarise(
    outcomes: Sequence[Outcome],
    duration: float,
    percents: Sequence[float] = (99.0,),
    objectives: Mapping[str, float] | None = None,
) -> Summary:
    """The figures of a load.

    Args:
        outcomes: of all its requests.
        duration: in seconds.
        percents: which percentiles to give.
        objectives: milliseconds by the names in ``GOODPUT_METRICS`` that a good request stays within.
    """
    done = [outcome for outcome in outcomes if outcome.succeeded]
    num_in = sum(outcome.prompt_tokens for outcome in done)
    num_out = sum(outcome.num_tokens for outcome in done)
    seconds: dict[str, list[float]] = {
        "ttft": [outcome.ttft for outcome in done],
        "tpot": [tpot for outcome in done if (tpot := outcome.tpot) is not None],
        "itl": [gap for outcome in done for gap in outcome.itl],
        "e2el": [outcome.e2el for outcome in done],
    }
    num_good = sum(_is_good(outcome, objectives) for outcome in done) if objectives else None
    max_tokens, max_requests = _peaks(done)
    return Summary(
        duration=duration,
        completed=len(done),
        failed=len(outcomes) - len(done),
        total_input_tokens=num_in,
        total_output_tokens=num_out,
        request_throughput=len(done) / duration,
        request_goodput=None if num_good is None else num_good / duration,
        output_throughput=num_out / duration,
        total_token_throughput=(num_in + num_out) / duration,
        max_output_tokens_per_s=max_tokens,
        max_concurrent_requests=max_requests,
        latencies={name: Distribution.of(values, percents) for name, values in seconds.items()},
    )


def _is_good(outcome: Outcome, objectives: Mapping[str, float]) -> bool:
    # An answer of one token has no TPOT, and can't miss its objective.
    values = {"ttft": outcome.ttft, "tpot": outcome.tpot or 0.0, "e2el": outcome.e2el}
    return all(1e3 * values[name] <= limit for name, limit in objectives.items())


def _peaks(done: Sequence[Outcome]) -> tuple[float, int]:
    """(events, requests under way) of the largest seconds."""
    if not done:
        return 0.0, 0
    start = min(outcome.sent for outcome in done)
    num_seconds = math.ceil(max(outcome.sent + outcome.e2el for outcome in done) - start) + 1
    events, requests = np.zeros(num_seconds), np.zeros(num_seconds)
    for outcome in done:
        begin = outcome.sent - start
        np.add.at(events, (begin + np.asarray(outcome.events)).astype(int), 1)
        requests[int(begin) : int(begin + outcome.e2el) + 1] += 1
    return float(events.max()), int(requests.max())

"""Prometheus metrics: latencies measured here, where the user sees them, and the engine's own totals as they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chiasm.schema.output import EngineStats, RequestOutput
from chiasm.server.engine import Engine

_FIRST_TOKEN_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_TOKEN_BUCKETS = (0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5)
_REQUEST_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500)


class ServerMetrics:
    """The metrics of one server, in a registry of its own so that two servers in a process do not meet.

    Attributes:
        registry: all of them, for the exposition.
    """

    def __init__(self, engine: Engine) -> None:
        self.registry = CollectorRegistry()
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From the request's arrival to its first token.", _FIRST_TOKEN_BUCKETS
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "Between outputs of one answer.", _TOKEN_BUCKETS
        )
        self.e2e_request_latency = self._histogram(
            "e2e_request_latency_seconds", "From the request's arrival to its end.", _REQUEST_BUCKETS
        )
        self.request_success = Counter(
            "chiasm:request_success", "Answers that ended, by reason.", ["finished_reason"], registry=self.registry
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens, those of media included.")
        self.image_tokens = self._counter("prompt_image_tokens", "Prompt tokens that stand for images.")
        self.video_tokens = self._counter("prompt_video_tokens", "Prompt tokens that stand for videos.")
        self.generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self.admission_rejections = self._counter("admission_rejections", "Requests refused because of load.")
        self.registry.register(_EngineCollector(engine))
        ProcessCollector(registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"chiasm:{name}", text, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"chiasm:{name}", text, registry=self.registry)


class RequestWatch:
    """Measures one prompt from its request's arrival to the end of its answers; a context around ``generate``."""

    def __init__(self, metrics: ServerMetrics, arrival: float) -> None:
        """Take the time of arrival from ``time.perf_counter``."""
        self._metrics = metrics
        self._arrival = arrival
        self._last_output: dict[int, float] = {}

    def __enter__(self) -> RequestWatch:
        """Watch."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Note how it ended."""
        if isinstance(error, GeneratorExit | asyncio.CancelledError):
            self._metrics.request_success.labels("abort").inc()
        elif error is not None:
            self._metrics.request_success.labels("error").inc()
        else:
            self._metrics.e2e_request_latency.observe(time.perf_counter() - self._arrival)

    def saw(self, output: RequestOutput) -> None:
        """Note news of the prompt's answers."""
        now = time.perf_counter()
        metrics = self._metrics
        if not self._last_output:
            metrics.time_to_first_token.observe(now - self._arrival)
            metrics.prompt_tokens.inc(len(output.prompt_token_ids))
            metrics.image_tokens.inc(output.num_image_tokens)
            metrics.video_tokens.inc(output.num_video_tokens)
        for answer in output.outputs:
            if answer.index in self._last_output:
                metrics.inter_token_latency.observe(now - self._last_output[answer.index])
            self._last_output[answer.index] = now
            metrics.generation_tokens.inc(len(answer.token_ids))
            if answer.finish_reason is not None:
                metrics.request_success.labels(answer.finish_reason).inc()


class _EngineCollector(Collector):
    """Reads the engine's latest statistics when somebody scrapes, so that no number is kept twice."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def collect(self) -> Iterator[Metric]:
        stats = self._engine.stats
        yield from _gauges(stats)
        yield from _counters(stats)
        yield _by_rank("encoder_seconds", "Time in the vision encoder.", stats.encoder_seconds)
        text = "Received by a rank within the vision encoder, for units cut by rows."
        yield _by_rank("encoder_exchanged_bytes", text, stats.encoder_exchanged_bytes)
        yield _by_label("encoder_plans", "Plans of the encoder's work.", "reason", stats.plan_reasons)
        text = "Passes through the vision encoder on rank 0, where some are recorded as CUDA graphs."
        yield _by_label("encoder_passes", text, "how", stats.encoder_passes)


def _by_label(name: str, text: str, label: str, values: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(f"chiasm:{name}", text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family


def _by_rank(name: str, text: str, values: Iterable[float]) -> Metric:
    family = CounterMetricFamily(f"chiasm:{name}", text, labels=["rank"])
    for rank, value in enumerate(values):
        family.add_metric([str(rank)], value)
    return family


def _gauges(stats: EngineStats) -> Iterator[Metric]:
    kv_usage = _share(stats.kv_blocks_used, stats.kv_blocks)
    encoder_usage = _share(stats.encoder_bytes_used, stats.encoder_bytes)
    for name, text, value in (
        ("num_requests_running", "Sequences with cache blocks.", stats.num_running),
        ("num_requests_waiting", "Sequences that wait for cache blocks.", stats.num_waiting),
        ("kv_cache_usage_perc", "Share of the KV cache in use, 1 is full.", kv_usage),
        ("encoder_cache_usage_perc", "Share of the encoder cache held by live sequences, 1 is full.", encoder_usage),
    ):
        yield GaugeMetricFamily(f"chiasm:{name}", text, value)


def _counters(stats: EngineStats) -> Iterator[Metric]:
    for name, text, value in (
        ("num_preemptions", "Sequences put back because blocks ran out.", stats.num_preemptions),
        ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache.", stats.prefix_queries),
        ("prefix_cache_hits", "Prompt tokens found in the prefix cache.", stats.prefix_hits),
        ("mm_cache_queries", "Vision units looked up in the encoder cache.", stats.encoder_queries),
        ("mm_cache_hits", "Vision units found in the encoder cache.", stats.encoder_hits),
        ("mm_processor_cache_queries", "Items looked up in the processor cache.", stats.processor_queries),
        ("mm_processor_cache_hits", "Items found in the processor cache.", stats.processor_hits),
        ("encoder_units", "Vision units encoded.", stats.units_encoded),
        (
            "encoder_makespan_seconds",
            "From the start of a step's encoding to its last feature.",
            stats.encoder_makespan,
        ),
        ("encoder_predicted_seconds", "The same, as the cost model predicted it.", stats.encoder_predicted),
        ("engine_steps", "Steps of the engine.", stats.steps),
    ):
        yield CounterMetricFamily(f"chiasm:{name}", text, value)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0

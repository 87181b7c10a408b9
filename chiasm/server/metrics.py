"""Prometheus metrics: latencies measured here, where the user sees them, and the engine's own totals as they are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol, get_args

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from chiasm.errors import OverloadedError, Shortage
from chiasm.schema.chat import PreparedPrompt, PrepareTimes
from chiasm.schema.output import EngineStats, RequestOutput, RequestTimes
from chiasm.server.admission import Admission
from chiasm.server.engine import Engine

# From a small model on a GPU to a large one on a laptop.
_STAGE_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100)
_TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2.5, 5)
_REQUEST_BUCKETS = (0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000)


class ServerMetrics:
    """The metrics of one server, in a registry of its own so that two servers in a process do not meet.

    Attributes:
        registry: all of them, for the exposition.
    """

    def __init__(self, engine: Engine, admission: Admission) -> None:
        self.registry = CollectorRegistry()
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From the request's arrival to its first token.", _STAGE_BUCKETS
        )
        self.time_per_output_token = self._histogram(
            "time_per_output_token_seconds",
            "Between the tokens of a prompt's longest answer, on average.",
            _TOKEN_BUCKETS,
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds", "Between outputs of one answer.", _TOKEN_BUCKETS
        )
        self.e2e_request_latency = self._histogram(
            "e2e_request_latency_seconds", "From the request's arrival to its end.", _REQUEST_BUCKETS
        )
        self._add_stages()
        self._add_counters()
        self.registry.register(_LiveCollector(engine, admission))
        ProcessCollector(registry=self.registry)

    def _add_stages(self) -> None:
        self.fetch_time = self._stage("request_fetch_time_seconds", "Until the bytes of a prompt's media are here.")
        self.preprocess_time = self._stage(
            "request_preprocess_time_seconds", "Decoding and resizing media, waiting for room for them, tokenising."
        )
        self.queue_time = self._stage("request_queue_time_seconds", "Until the engine takes a prompt up.")
        self.encode_time = self._stage(
            "request_encode_time_seconds", "Steps that encode units of a prompt, where any has to be encoded."
        )
        self.prefill_time = self._stage("request_prefill_time_seconds", "From then to its first token.")
        self.decode_time = self._histogram(
            "request_decode_time_seconds", "From its first token to its last.", _REQUEST_BUCKETS
        )

    def _add_counters(self) -> None:
        self.request_success = Counter(
            "chiasm:request_success", "Answers that ended, by reason.", ["finished_reason"], registry=self.registry
        )
        self.prompt_tokens = self._counter("prompt_tokens", "Prompt tokens, those of media included.")
        self.image_tokens = self._counter("prompt_image_tokens", "Prompt tokens that stand for images.")
        self.video_tokens = self._counter("prompt_video_tokens", "Prompt tokens that stand for videos.")
        self.generation_tokens = self._counter("generation_tokens", "Generated tokens.")
        self._rejections = Counter(
            "chiasm:admission_rejections", "Requests refused because of load.", ["reason"], registry=self.registry
        )
        for reason in get_args(Shortage):
            self._rejections.labels(reason)

    def count_rejection(self, error: OverloadedError) -> None:
        """A request was refused because of load."""
        self._rejections.labels(error.reason).inc()

    def observe_start(self, times: RequestTimes) -> None:
        """The engine has the first token of a prompt."""
        self.queue_time.observe(times.taken_up - times.added)
        self.prefill_time.observe(times.first_token - times.taken_up)
        if times.encode_start is not None:
            self.encode_time.observe(times.encode_seconds)

    def observe_whole(self, record: PromptRecord, now: float) -> None:
        """All answers of a prompt are whole."""
        self.e2e_request_latency.observe(now - record.arrival)
        if record.first_output is not None and record.last_output is not None:
            decoding = record.last_output - record.first_output
            self.decode_time.observe(decoding)
            longest = max(record.num_tokens.values(), default=0)
            if longest > 1:
                self.time_per_output_token.observe(decoding / (longest - 1))

    def _stage(self, name: str, text: str) -> Histogram:
        return self._histogram(name, text, _STAGE_BUCKETS)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(f"chiasm:{name}", text, buckets=buckets, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(f"chiasm:{name}", text, registry=self.registry)


@dataclass
class PromptRecord:
    """What is known of one prompt when its answers have ended; times are by ``time.perf_counter``.

    Attributes:
        arrival: of its request.
        request_id: the name of its answers; empty before there was any.
        prepare: when it was prepared.
        engine: what the engine did until its first token.
        first_output: when its first token was here.
        last_output: when its last one was.
        num_prompt_tokens: those of media included.
        num_tokens: generated, by the index of the answer.
        finish_reasons: of its answers.
        error: the class of what ended it otherwise, whose traceback holds all of the request.
    """

    arrival: float
    request_id: str = ""
    prepare: PrepareTimes | None = None
    engine: RequestTimes | None = None
    first_output: float | None = None
    last_output: float | None = None
    num_prompt_tokens: int = 0
    num_tokens: dict[int, int] = field(default_factory=dict)
    finish_reasons: list[str] = field(default_factory=list)
    error: str | None = None


class Trace(Protocol):
    """Where the course of a request is written down."""

    def add_prompt(self, record: PromptRecord) -> None:
        """A prompt of it has ended."""
        ...


class RequestWatch:
    """Measures one prompt from its request's arrival to the end of its answers; a context around ``generate``."""

    def __init__(self, metrics: ServerMetrics, arrival: float, trace: Trace | None = None) -> None:
        """Take the time of arrival from ``time.perf_counter``."""
        self._metrics = metrics
        self._trace = trace
        self._record = PromptRecord(arrival)
        self._last_output: dict[int, float] = {}

    def __enter__(self) -> RequestWatch:
        """Watch."""
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Note how it ended."""
        record, metrics = self._record, self._metrics
        record.error = None if error is None else type(error).__name__
        if isinstance(error, GeneratorExit | asyncio.CancelledError):
            metrics.request_success.labels("abort").inc()
        elif error is not None:
            metrics.request_success.labels("error").inc()
        else:
            metrics.observe_whole(record, time.perf_counter())
        if self._trace is not None:
            self._trace.add_prompt(record)

    def prepared(self, prompt: PreparedPrompt) -> None:
        """Note that the prompt is ready for the engine."""
        record, metrics = self._record, self._metrics
        record.prepare = prompt.times
        record.num_prompt_tokens = len(prompt.token_ids)
        if prompt.times is not None:
            metrics.fetch_time.observe(prompt.times.fetched - prompt.times.began)
            metrics.preprocess_time.observe(prompt.times.prepared - prompt.times.fetched)

    def saw(self, output: RequestOutput) -> None:
        """Note news of the prompt's answers."""
        now = time.perf_counter()
        record, metrics = self._record, self._metrics
        if record.first_output is None:
            record.request_id, record.first_output = output.request_id, now
            metrics.time_to_first_token.observe(now - record.arrival)
            metrics.prompt_tokens.inc(len(output.prompt_token_ids))
            metrics.image_tokens.inc(output.num_image_tokens)
            metrics.video_tokens.inc(output.num_video_tokens)
        if output.times is not None and record.engine is None:
            record.engine = output.times
            metrics.observe_start(output.times)
        record.last_output = now
        for answer in output.outputs:
            if answer.index in self._last_output:
                metrics.inter_token_latency.observe(now - self._last_output[answer.index])
            self._last_output[answer.index] = now
            record.num_tokens[answer.index] = record.num_tokens.get(answer.index, 0) + len(answer.token_ids)
            metrics.generation_tokens.inc(len(answer.token_ids))
            if answer.finish_reason is not None:
                record.finish_reasons.append(answer.finish_reason)
                metrics.request_success.labels(answer.finish_reason).inc()


class _LiveCollector(Collector):
    """Reads the latest statistics when somebody scrapes, so that no number is kept twice."""

    def __init__(self, engine: Engine, admission: Admission) -> None:
        self._engine = engine
        self._admission = admission

    def collect(self) -> Iterator[Metric]:
        stats, admission = self._engine.stats, self._admission
        yield GaugeMetricFamily(
            "chiasm:answers_in_flight", "Answers being made or waited for.", admission.num_answers
        )
        text = "Bytes of the bodies of requests that are not answered yet."
        yield GaugeMetricFamily("chiasm:body_bytes_in_flight", text, admission.num_body_bytes)
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
        ("pixel_bytes_in_flight", "Bytes of pixels held or reserved for unfinished requests.", stats.pixel_bytes),
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
        ("encoder_units_ahead", "Of these, encoded before the step that reads them.", stats.units_ahead),
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

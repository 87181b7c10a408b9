"""OpenTelemetry traces: a span for each request, below it one for each prompt and its stages.

Nothing of OpenTelemetry is imported unless an endpoint is given. Spans are made when a prompt has ended, of the times
that its watch took, so that nothing is carried along while it runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chiasm.errors import UserError
from chiasm.server.metrics import PromptRecord

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span, Tracer

_TRACED = "/v1/"  # health checks and scrapes would only fill the store
_CLOSE_SECONDS = 2.0


class Stage(NamedTuple):
    """A part of a prompt's way, by ``time.perf_counter``."""

    name: str
    start: float
    end: float


class Tracing:
    """The traces of one server.

    Args:
        processor: takes the spans that have ended.

    Attributes:
        tracer: makes spans.
    """

    def __init__(self, processor: SpanProcessor) -> None:
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider

        # Where the environment names the service (OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES), that wins.
        resource = Resource({"service.name": "chiasm"}).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(processor)
        self.tracer: Tracer = self._provider.get_tracer("chiasm")

    @classmethod
    def to_endpoint(cls, endpoint: str) -> Tracing:
        """Send spans to an OTLP receiver over HTTP, in batches and from a thread of its own.

        Args:
            endpoint: its URL; without a path, OTLP's own is taken.

        Raises:
            UserError: if OpenTelemetry is not installed.
        """
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            message = "otlp_traces_endpoint needs OpenTelemetry: pip install 'chiasm[otel]'."
            raise UserError(message, param="otlp_traces_endpoint") from error
        if urlsplit(endpoint).path in ("", "/"):
            endpoint = endpoint.rstrip("/") + "/v1/traces"
        return cls(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))

    def close(self) -> None:
        """Send what is left, and give up after a short while: a receiver that is gone must not hold up the end."""
        # The exporter's own limit is longer and can't be had shorter for the last time only.
        sending = threading.Thread(target=self._provider.shutdown, daemon=True)
        sending.start()
        sending.join(_CLOSE_SECONDS)


class RequestTrace:
    """The trace of one request.

    Args:
        tracer: makes spans.
        span: of the request.
    """

    def __init__(self, tracer: Tracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span

    def add_prompt(self, record: PromptRecord) -> None:
        """Write down a prompt that has ended."""
        from opentelemetry.trace import Status, StatusCode, set_span_in_context

        now = time.perf_counter()
        epoch = time.time_ns() - int(now * 1e9)
        span = self._tracer.start_span(
            "llm_request",
            set_span_in_context(self._span),
            attributes=_attributes(record),
            start_time=_nanoseconds(record.arrival, epoch),
        )
        below = set_span_in_context(span)
        for stage in stages(record):
            child = self._tracer.start_span(stage.name, below, start_time=_nanoseconds(stage.start, epoch))
            child.end(_nanoseconds(stage.end, epoch))
        if record.error is not None:
            span.set_status(Status(StatusCode.ERROR, record.error))
        span.end(_nanoseconds(now, epoch))


class TracedRequests:
    """Gives each request of the API a span, which goes on a trace that the client began (``traceparent``)."""

    def __init__(self, app: ASGIApp, tracer: Tracer) -> None:
        self._app = app
        self._tracer = tracer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if not scope["path"].startswith(_TRACED):
            await self._app(scope, receive, send)
            return
        span = self._start(scope)
        scope["state"]["trace"] = RequestTrace(self._tracer, span)

        async def send_with_status(message: Message) -> None:
            if message["type"] == "http.response.start":
                _set_status(span, message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_with_status)
        finally:
            span.end()

    def _start(self, scope: Scope) -> Span:
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        headers = Headers(scope=scope)
        return self._tracer.start_span(
            f"{scope['method']} {scope['path'][:100]}",
            TraceContextTextMapPropagator().extract(dict(headers)),
            SpanKind.SERVER,
            {
                "http.request.method": scope["method"],
                "url.path": scope["path"][:1000],
                "chiasm.request_id": scope["state"]["request_id"],
            },
        )


def stages(record: PromptRecord) -> Iterator[Stage]:
    """What a prompt went through, as far as it came. Encoding lies within queue and prefill, beside other work."""
    prepare, engine = record.prepare, record.engine
    if prepare is not None:
        yield Stage("fetch", prepare.began, prepare.fetched)
        yield Stage("preprocess", prepare.fetched, prepare.prepared)
    if engine is not None:
        yield Stage("queue", engine.added, engine.taken_up)
        if engine.encode_start is not None and engine.encode_end is not None:
            yield Stage("encode", engine.encode_start, engine.encode_end)
        yield Stage("prefill", engine.taken_up, engine.first_token)
        yield Stage("decode", engine.first_token, record.last_output or engine.first_token)


def _attributes(record: PromptRecord) -> dict[str, Any]:
    """Under OpenTelemetry's names for generative models where there is one."""
    attributes: dict[str, Any] = {
        "gen_ai.response.id": record.request_id,
        "gen_ai.usage.input_tokens": record.num_prompt_tokens,
        "gen_ai.usage.output_tokens": sum(record.num_tokens.values()),
        "gen_ai.response.finish_reasons": list(record.finish_reasons),
    }
    if record.first_output is not None:
        attributes["gen_ai.server.time_to_first_token"] = record.first_output - record.arrival
    if record.engine is not None:
        attributes["chiasm.encode_seconds"] = record.engine.encode_seconds
    return attributes


def _set_status(span: Span, status: int) -> None:
    from opentelemetry.trace import Status, StatusCode

    span.set_attribute("http.response.status_code", status)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        span.set_status(Status(StatusCode.ERROR))


def _nanoseconds(seconds: float, epoch: int) -> int:
    return epoch + int(seconds * 1e9)

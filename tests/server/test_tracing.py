"""Traces: which spans a request has, when they were, and that nothing is imported without an endpoint."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from chiasm.errors import UserError
from chiasm.schema.chat import PrepareTimes
from chiasm.schema.output import RequestTimes
from chiasm.server.metrics import PromptRecord
from chiasm.server.tracing import Tracing, stages
from tests.clocks import PATIENCE, wait_until
from tests.server.running import RunningServer

Traced = tuple[RunningServer, InMemorySpanExporter]


@pytest.fixture
def traced() -> Iterator[Traced]:
    exporter = InMemorySpanExporter()
    tracing = Tracing(SimpleSpanProcessor(exporter))
    with RunningServer(tracing=tracing) as server:
        yield server, exporter
    tracing.close()


def spans(exporter: InMemorySpanExporter, count: int) -> dict[str, ReadableSpan]:
    """By name, once so many have ended."""
    wait_until(lambda: len(exporter.get_finished_spans()) >= count)
    found = {span.name: span for span in exporter.get_finished_spans()}
    assert len(found) == count
    return found


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_goes_on_the_clients_trace(traced: Traced, *, stream: bool) -> None:
    server, exporter = traced
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    headers = {"traceparent": f"00-{trace}-{parent}-01", "x-request-id": "mine"}
    before = time.time_ns()
    body = {"messages": [{"role": "user", "content": "Hi there"}], "stream": stream}
    server.client.post("/v1/chat/completions", json=body, headers=headers)
    found = spans(exporter, 7)
    root, prompt = found["POST /v1/chat/completions"], found["llm_request"]
    assert {f"{span.context.trace_id:032x}" for span in found.values()} == {trace}
    assert root.parent is not None
    assert f"{root.parent.span_id:016x}" == parent
    assert root.attributes is not None
    assert (root.attributes["chiasm.request_id"], root.attributes["http.response.status_code"]) == ("mine", 200)
    assert prompt.parent is not None
    assert prompt.parent.span_id == root.context.span_id
    attributes = dict(prompt.attributes or {})
    assert attributes["gen_ai.usage.input_tokens"] == 2
    assert attributes["gen_ai.usage.output_tokens"] == 4
    assert attributes["gen_ai.response.finish_reasons"] == ("stop",)
    assert str(attributes["gen_ai.response.id"]).startswith("chatcmpl-mine-")
    names = ["fetch", "preprocess", "queue", "prefill", "decode"]
    ordered = [found[name] for name in names]
    assert all(one.parent is not None and one.parent.span_id == prompt.context.span_id for one in ordered)
    times = [time for one in ordered for time in (one.start_time, one.end_time)]
    assert times == sorted(times)  # type: ignore[type-var]
    assert before - 1e7 <= (prompt.start_time or 0) <= (times[0] or 0)
    assert (times[-1] or 0) <= (prompt.end_time or 0) <= time.time_ns() + 1e7


def test_what_failed_says_so(traced: Traced) -> None:
    server, exporter = traced
    server.engine.prepare_error = UserError("no such picture", param="messages")
    server.chat()
    [root] = spans(exporter, 1).values()
    assert (root.attributes or {})["http.response.status_code"] == 400
    exporter.clear()
    server.engine.reset()
    server.engine.generate_error = RuntimeError("a bug")
    server.chat()
    found = spans(exporter, 4)
    assert not found["llm_request"].status.is_ok
    assert found["llm_request"].status.description == "RuntimeError"
    assert not found["POST /v1/chat/completions"].status.is_ok


def test_each_prompt_has_a_span_and_other_routes_none(traced: Traced) -> None:
    server, exporter = traced
    server.client.get("/health")
    server.client.get("/metrics")
    server.complete(["Once upon", "a time"])
    wait_until(lambda: len(exporter.get_finished_spans()) == 13)
    assert [span.name for span in exporter.get_finished_spans()].count("llm_request") == 2


def test_stages_of_a_prompt_with_media() -> None:
    record = PromptRecord(
        arrival=1.0,
        prepare=PrepareTimes(1.0, 2.0, 3.0),
        engine=RequestTimes(3.5, 5.0, 8.0, encode_start=4.0, encode_end=6.0, encode_seconds=1.5),
        first_output=8.5,
        last_output=10.0,
    )
    assert list(stages(record)) == [
        ("fetch", 1.0, 2.0),
        ("preprocess", 2.0, 3.0),
        ("queue", 3.5, 4.0),
        ("encode", 4.0, 6.0),
        ("prefill", 4.0, 8.0),
        ("decode", 8.0, 10.0),
    ]
    assert list(stages(PromptRecord(1.0))) == []


def test_spans_arrive_over_http() -> None:
    received: list[tuple[str, ExportTraceServiceRequest]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            data = self.rfile.read(int(self.headers["content-length"]))
            if self.headers.get("content-encoding") == "gzip":
                import gzip

                data = gzip.decompress(data)
            received.append((self.path, ExportTraceServiceRequest.FromString(data)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        thread = threading.Thread(target=receiver.serve_forever)
        thread.start()
        tracing = Tracing.to_endpoint(f"http://127.0.0.1:{receiver.server_port}")
        with RunningServer(tracing=tracing) as server:
            server.chat()
        tracing.close()
        receiver.shutdown()
        thread.join()
    [(path, request)] = received
    assert path == "/v1/traces"
    [resource] = request.resource_spans
    assert ("service.name", "chiasm") in {(one.key, one.value.string_value) for one in resource.resource.attributes}
    assert {span.name for scope in resource.scope_spans for span in scope.spans} >= {"llm_request", "prefill"}


def test_a_receiver_that_is_gone_holds_nothing_up(monkeypatch: pytest.MonkeyPatch) -> None:
    tracing = Tracing.to_endpoint("http://127.0.0.1:9")
    with RunningServer(tracing=tracing) as server:
        assert server.chat().status_code == 200
    shut_down, may_give_up, has_given_up = tracing._provider.shutdown, threading.Event(), threading.Event()

    def give_up_late() -> None:
        may_give_up.wait(PATIENCE)
        shut_down()
        has_given_up.set()

    monkeypatch.setattr("chiasm.server.tracing._CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(tracing._provider, "shutdown", give_up_late)
    tracing.close()
    assert not has_given_up.is_set(), "it was not waited for"
    may_give_up.set()


def test_nothing_is_imported_without_an_endpoint() -> None:
    code = "import sys, chiasm.server.run, chiasm.cli.main; sys.exit('opentelemetry.sdk' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(UserError, match=r"chiasm\[otel\]"):
        Tracing.to_endpoint("http://127.0.0.1:4318")

"""What a server says of itself, and the ids of requests."""

from __future__ import annotations

import logging
import re
from importlib.metadata import version

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from chiasm.schema.output import CompletionOutput, EngineStats, RequestOutput
from chiasm.server.metrics import RequestWatch, ServerMetrics
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer


def test_models(client: openai.OpenAI, server: RunningServer) -> None:
    assert [model.id for model in client.models.list()] == ["org/fake-vl"]
    (card,) = server.client.get("/v1/models").json()["data"]
    keys = {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission"}
    assert set(card) == keys
    assert (card["object"], card["root"], card["parent"], card["max_model_len"]) == (
        "model",
        "org/fake-vl",
        None,
        256,
    )
    assert card["permission"][0]["object"] == "model_permission"
    assert client.models.retrieve("org/fake-vl").id == "org/fake-vl"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_several_served_names() -> None:
    with RunningServer(served_model_names=("vl", "vision")) as server:
        cards = server.client.get("/v1/models").json()["data"]
        assert [(card["id"], card["root"]) for card in cards] == [("vl", "org/fake-vl"), ("vision", "org/fake-vl")]
        assert server.chat().json()["model"] == "vl"
        assert server.chat(model="vision").json()["model"] == "vision"
        assert server.chat(model="org/fake-vl").status_code == 404


def test_health_has_an_empty_body() -> None:
    with RunningServer() as server:
        alive = server.client.get("/health")
        assert (alive.status_code, alive.content) == (200, b"")
        server.engine.die()
        dead = server.client.get("/health")
        assert (dead.status_code, dead.content) == (503, b"")


@pytest.mark.parametrize(
    "path", ["/", "/ui/main.js", "/health", "/metrics", "/version", "/v1/models", "/openapi.json", "/ranks/events"]
)
def test_head_is_answered_wherever_get_is(server: RunningServer, path: str) -> None:
    with server.client.stream("GET", path) as streamed:
        status, kind = streamed.status_code, streamed.headers.get("content-type")
    head = server.client.head(path)
    assert (status, head.status_code, head.content) == (200, 200, b"")
    assert head.headers.get("content-type") == kind
    assert server.client.head(path).status_code == 200  # the connection is in order
    assert server.client.head("/v1/chat/completions").status_code == 405


def test_version(server: RunningServer) -> None:
    assert server.client.get("/version").json() == {"version": version("chiasm")}


def test_openapi_describes_the_bodies(server: RunningServer) -> None:
    paths = server.client.get("/openapi.json").json()["paths"]
    for path, field in (("/v1/chat/completions", "messages"), ("/v1/completions", "prompt")):
        schema = paths[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert schema["required"] == [field]
        assert "temperature" in schema["properties"]


def test_request_ids(server: RunningServer, engine: FakeEngine) -> None:
    body = {"messages": [{"role": "user", "content": "Hi"}]}
    twice = [
        server.client.post("/v1/chat/completions", json=body, headers={"X-Request-ID": "bench-1"}) for _ in range(2)
    ]
    assert [r.headers["x-request-id"] for r in twice] == ["bench-1"] * 2
    assert all(r.json()["id"].startswith("chatcmpl-bench-1-") for r in twice)
    assert len(set(engine.request_ids)) == 2


@pytest.mark.parametrize("given", ["", "x" * 129, "a b", "../../etc", "é".encode(), "<script>"])
def test_other_request_ids_are_replaced(server: RunningServer, given: str | bytes) -> None:
    given = given if isinstance(given, bytes) else given.encode()
    answer = server.client.get("/health", headers={b"X-Request-Id": given})
    assert answer.headers["x-request-id"].isalnum()


def test_the_log_names_requests(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("chiasm"), "propagate", True)
    with caplog.at_level("INFO", "chiasm"), RunningServer(access_log=True) as server:
        server.client.get("/health/%0aforged?key=secret", headers={"x-request-id": "r-1"})
        server.engine.generate_error = RuntimeError("a bug")
        answer = server.client.post("/v1/completions", json={"prompt": "a"}, headers={"x-request-id": "r-2"})
        assert (answer.status_code, answer.headers["x-request-id"]) == (500, "r-2")
        server.engine.words_before_error = 2
        streamed = {"prompt": "a", "stream": True}
        server.client.post("/v1/completions", json=streamed, headers={"x-request-id": "r-3"})
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("chiasm.server")]
    assert [re.sub(r"\d\.\d{3} s", "T", line) for line in lines] == [
        "request r-1: GET /health/%0Aforged, status 404, T",
        "request r-2 failed",
        "request r-2: POST /v1/completions, status 500, T",
        "the stream of request r-3 failed",
        "request r-3: POST /v1/completions, status 200, T",
    ]
    assert all(record.exc_info for record in caplog.records if "failed" in record.getMessage())


def test_metrics(server: RunningServer, engine: FakeEngine) -> None:
    stops = 'chiasm:request_success_total{finished_reason="stop"}'
    server.chat()
    before = {
        name: server.metric(name)
        for name in (
            stops, "chiasm:prompt_tokens_total", "chiasm:prompt_image_tokens_total", "chiasm:generation_tokens_total",
            "chiasm:time_to_first_token_seconds_count", "chiasm:inter_token_latency_seconds_count",
            "chiasm:e2e_request_latency_seconds_count", "chiasm:time_per_output_token_seconds_count",
            "chiasm:request_queue_time_seconds_count", "chiasm:request_prefill_time_seconds_count",
            "chiasm:request_decode_time_seconds_count", "chiasm:request_preprocess_time_seconds_count",
            "chiasm:request_fetch_time_seconds_count", "chiasm:request_encode_time_seconds_count",
        )
    }  # fmt: skip
    server.chat(["two words", {"image_url": "data:x"}], n=2)
    assert [server.metric(name) - value for name, value in before.items()] == [
        2,
        6,
        4,
        8,
        1,
        6,
        1,
        1,
        1,
        1,
        1,
        1,
        1,
        0,
    ]


def test_the_time_per_token_is_the_longest_answers(
    server: RunningServer, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An answer of 11 tokens beside one of a single token, a token each 10 ms."""
    now = 100.0
    monkeypatch.setattr("chiasm.server.metrics.time.perf_counter", lambda: now)
    metrics = ServerMetrics(engine, server.state.admission)
    with RequestWatch(metrics, now) as watch:
        for position in range(11):
            answers = [CompletionOutput(0, "a", [1], finish_reason="length" if position == 10 else None)]
            answers += [CompletionOutput(1, "a", [1], finish_reason="length")] if position == 0 else []
            watch.saw(RequestOutput("r", None, [1], answers, position == 10))
            now += 0.01
    found = metrics.registry.get_sample_value("chiasm:time_per_output_token_seconds_sum")
    assert found == pytest.approx(0.01)


def test_metrics_of_the_engine(server: RunningServer, engine: FakeEngine) -> None:
    engine.stats = EngineStats(
        num_running=3, num_waiting=2, kv_blocks=10, kv_blocks_used=5, num_preemptions=4, units_encoded=6,
        units_ahead=5,
        encoder_seconds=(0.5, 0.25), encoder_exchanged_bytes=(7, 8), plan_reasons={"one image": 7},
        encoder_passes={"in graphs": 9},
        processor_queries=9, processor_hits=8, encoder_makespan=1.5, encoder_predicted=1.25,
    )  # fmt: skip
    for name, value in (
        ("num_requests_running", 3), ("num_requests_waiting", 2), ("kv_cache_usage_perc", 0.5),
        ("encoder_cache_usage_perc", 0), ("num_preemptions_total", 4), ("encoder_units_total", 6),
        ("encoder_units_ahead_total", 5),
        ("encoder_makespan_seconds_total", 1.5), ("encoder_predicted_seconds_total", 1.25),
        ("mm_processor_cache_queries_total", 9), ("mm_processor_cache_hits_total", 8),
        ('encoder_exchanged_bytes_total{rank="1"}', 8),
        ('encoder_seconds_total{rank="1"}', 0.25), ('encoder_plans_total{reason="one image"}', 7),
        ('encoder_passes_total{how="in graphs"}', 9),
    ):  # fmt: skip
        assert server.metric(f"chiasm:{name}") == value


def test_the_exposition_parses(server: RunningServer) -> None:
    server.chat()
    response = server.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    families = {family.name for family in text_string_to_metric_families(response.text)}
    assert {"chiasm:time_to_first_token_seconds", "chiasm:request_success", "chiasm:num_requests_running"} <= families

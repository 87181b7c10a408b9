"""``chiasm bench serve`` against a server with a fake engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from chiasm.bench.datasets.sample import Sample
from chiasm.bench.serve.command import ServeBenchmark
from chiasm.bench.serve.load import Load
from chiasm.bench.serve.metrics import Outcome
from chiasm.cli.main import main
from tests.docs.pasted import pasted
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer

# Those of a chat load in a file of vLLM 0.32, but for the latencies'.
VLLM_KEYS = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts", "request_rate",
    "burstiness", "max_concurrency", "duration", "completed", "failed", "total_input_tokens",
    "total_output_tokens", "request_throughput", "request_goodput", "output_throughput",
    "total_token_throughput", "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
    "queue_times", "generated_texts", "errors", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx",
}  # fmt: skip


@pytest.fixture
def server() -> Iterator[RunningServer]:
    with RunningServer() as server:
        yield server


def bench(server: RunningServer, *flags: str) -> int:
    return main(["bench", "serve", "--port", str(server.port), "--disable-tqdm", *flags])


def test_prints_the_block_that_users_compare(
    server: RunningServer, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    few = ["--num-prompts", "6", "--max-concurrency", "2", "--request-rate", "200", "--result-dir", str(tmp_path)]
    assert main(pasted("bench serve --ready", {}, "--port", str(server.port), "--disable-tqdm", *few)) == 0
    assert len(list(tmp_path.iterdir())) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "============ Serving Benchmark Result ============"
    assert lines[1] == "Successful requests:                     6         "
    assert lines[2] == "Failed requests:                         0         "
    assert lines[3] == "Maximum request concurrency:             2         "
    assert lines[4] == "Request rate configured (RPS):           200.00    "
    titles = [line for line in lines if line.startswith("-")]
    assert titles == [
        "---------------Time to First Token----------------",
        "-----Time per Output Token (excl. 1st token)------",
        "---------------Inter-token Latency----------------",
    ]
    assert [line.split(" (ms)")[0] for line in lines if "TTFT" in line] == ["Mean TTFT", "Median TTFT", "P99 TTFT"]
    assert lines[-1] == "=" * 50


def test_asks_what_it_says(server: RunningServer) -> None:
    flags = ["--num-warmups", "2", "--temperature", "0", "--ignore-eos", "--extra-body", '{"min_tokens": 3}']
    assert bench(server, "--num-prompts", "3", "--output-len", "5", *flags) == 0
    engine: FakeEngine = server.engine
    assert len(engine.sampling) == 5
    for sampling in engine.sampling:
        assert (sampling.max_tokens, sampling.min_tokens, sampling.ignore_eos) == (5, 3, True)
        assert sampling.temperature == 0
    assert len(set(engine.request_ids)) == 5


def test_noise_is_asked_for_full_answers(server: RunningServer) -> None:
    small = ["--random-input-len", "2", "--random-mm-bucket-config", "{(32, 32, 1): 1}"]
    assert bench(server, "--num-prompts", "1", "--dataset-name", "random-mm", *small) == 0
    assert all(sampling.ignore_eos for sampling in server.engine.sampling)


def test_writes_what_vllms_benchmark_writes(server: RunningServer, tmp_path: Path) -> None:
    kept = ["--save-detailed", "--result-dir", str(tmp_path / "new"), "--label", "mine", "--metadata", "tp=2"]
    shown = ["--percentile-metrics", "ttft,e2el", "--metric-percentiles", "50,99.9", "--goodput", "ttft:60000"]
    assert bench(server, "--num-prompts", "4", "--num-warmups", "0", *kept, *shown) == 0
    [file] = (tmp_path / "new").iterdir()
    assert file.name.startswith("mine-infqps-fake-vl-")
    found = json.loads(file.read_text())
    assert found["model_id"] == "org/fake-vl"
    assert (found["label"], found["tp"], found["request_rate"], found["num_prompts"]) == ("mine", "2", "inf", 4)
    assert (found["completed"], found["failed"]) == (4, 0)
    assert found["total_output_tokens"] == sum(found["output_lens"]) == 4 * len(server.engine.words)
    assert found["total_input_tokens"] == sum(found["input_lens"])
    assert min(found["input_lens"]) > 0, "the server's count was asked for"
    assert found["request_goodput"] == found["request_throughput"]
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for name in ("mean", "median", "std", "p50", "p99.9"):
            assert found[f"{name}_{metric}_ms"] >= 0
    assert set(found) >= VLLM_KEYS
    for name in ("latencies", "queue_times", "ttfts", "itls", "start_times", "generated_texts", "errors"):
        assert len(found[name]) == 4
    assert found["generated_texts"] == ["".join(server.engine.words)] * 4


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--request-rate", "500"], "openai-chat-500.0qps-fake-vl-"),
        (
            [
                "--ramp-up",
                "linear",
                "--ramp-up-start-rps",
                "100",
                "--ramp-up-end-rps",
                "300",
                "--max-concurrency",
                "2",
            ],
            "openai-chat-ramp-up-linear-100qps-300qps-concurrency2-fake-vl-",
        ),
    ],
)
def test_files_are_called_as_vllms_are(server: RunningServer, tmp_path: Path, flags: list[str], name: str) -> None:
    assert bench(server, "--num-prompts", "2", "--save-result", "--result-dir", str(tmp_path), *flags) == 0
    [file] = tmp_path.iterdir()
    assert file.name.startswith(name)
    found = json.loads(file.read_text())
    ramp_up = [found.get(f"ramp_up_{key}") for key in ("strategy", "start_rps", "end_rps")]
    assert ramp_up == (["linear", 100, 300] if "--ramp-up" in flags else [None] * 3)


def test_failed_requests_are_counted_and_told(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(server, "--num-prompts", "2", "--num-warmups", "0", "--model", "other") == 1
    printed = capsys.readouterr()
    assert "Failed requests:                         2" in printed.out
    assert "status 404" in printed.err


def test_an_answer_that_breaks_off_has_failed(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    server.engine.generate_error, server.engine.words_before_error = RuntimeError("bug"), 2
    assert bench(server, "--num-prompts", "1", "--num-warmups", "0") == 1
    assert "broken off" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--percentile-metrics", "ttft,speed"], "percentile_metrics must be of ttft"),
        (["--metric-percentiles", "101"], "metric_percentiles must be in"),
        (["--metric-percentiles", "x"], "metric_percentiles must be a number"),
        (["--goodput", "itl:3"], "goodput must be of ttft"),
        (["--goodput", "ttft"], "goodput must be NAME:VALUE"),
        (["--goodput", "ttft:-1"], "goodput must be at least 0"),
        (["--goodput", "ttft:nan"], "goodput must be at least 0"),
        (["--ramp-up", "linear"], "A ramp-up needs"),
        (["--ramp-up-start-rps", "1"], "need --ramp-up-strategy"),
        (["--extra-body", "[]"], "extra_body must be a JSON object"),
        (["--header", "x"], "header must be NAME=VALUE"),
        (["--save-result", "--result-filename", "a/b.json"], "result_filename must be a name"),
        (["--save-result", "--label", "a/b"], "label must be the beginning of a file's name"),
        (["--save-result", "--label", "a" * 300], "label must be the beginning of a file's name"),
        (["--base-url", "ftp://x"], "base_url must be an http"),
        (["--random-mm-limit-mm-per-prompt", '{"audio": 1}'], "random_mm_limit_mm_per_prompt must be"),
    ],
)
def test_bad_flags_are_refused_by_name(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--port", "9", *flags]) == 2
    assert said in capsys.readouterr().err


def test_an_address_may_end_as_openais_clients_write_it(server: RunningServer) -> None:
    assert main(["bench", "serve", "--base-url", f"http://127.0.0.1:{server.port}/v1/", "--num-prompts", "1"]) == 0


def test_a_server_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "serve", "--port", "9"]) == 2
    assert "No server is ready at http://127.0.0.1:9" in capsys.readouterr().err


def test_a_warm_up_that_fails_ends_it(server: RunningServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench(server, "--model", "other") == 2
    assert "warm up fails: status 404" in capsys.readouterr().err


def test_a_load_that_is_stopped_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ended = Outcome(events=[0.1, 0.2], prompt_tokens=3, completion_tokens=2)
    monkeypatch.setattr(ServeBenchmark, "run", lambda _: (Load("m", [Sample([], 1)] * 4), [ended], 1.0))
    assert main(["bench", "serve", "--num-prompts", "4"]) == 130
    printed = capsys.readouterr()
    assert "Successful requests:                     1 " in printed.out
    assert printed.err.endswith("Stopped when 1 of 4 requests had ended.\n")

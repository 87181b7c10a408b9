"""``vllm bench serve``, vLLM's own load generator."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chiasm.config.built_in import BUILT_IN_FOLDER
from tests.clients.charts import MAX_TOKENS, Asked, write_lines
from tests.clients.driven import DRIVERS
from tests.clients.environments import Environment
from tests.e2e.servers import Server

CHAT = ("--backend", "openai-chat", "--endpoint", "/v1/chat/completions")


@pytest.fixture(scope="module")
def client(install: Callable[[str], Environment]) -> Environment:
    return install("vllm")


def bench(client: Environment, server: Server, folder: Path, num_prompts: int, *options: str) -> dict[str, Any]:
    """Its report in detail."""
    client.run(
        "python", str(DRIVERS / "vllm_bench.py"), "--base-url", server.url, "--tokenizer", str(BUILT_IN_FOLDER),
        "--num-prompts", str(num_prompts), "--max-concurrency", "4", "--temperature", "0", "--save-result",
        "--save-detailed", "--result-filename", "report.json", *options, cwd=folder,
    )  # fmt: skip
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    assert (report["completed"], report["failed"]) == (num_prompts, 0), report["errors"]
    assert report["model_id"] == ("chart-reader" if "--model" in options else str(BUILT_IN_FOLDER)), "the root"
    assert 0 < report["median_ttft_ms"] < 1000 * report["duration"]
    return report


def test_given_pictures(client: Environment, charts_server: Server, charts: list[Asked], tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"prompt": c.question, "image_files": [str(c.picture)]} for c in charts]
    lines = str(write_lines(tmp_path / "charts.jsonl", rows))
    given = ("--dataset-name", "custom_image", "--dataset-path", lines, "--custom-ensure-client-side-data")
    more = ("--disable-shuffle", "--custom-output-len", str(MAX_TOKENS))
    report = bench(client, charts_server, tmp_path, len(charts), *CHAT, *given, *more, "--model", "chart-reader")
    assert report["generated_texts"] == [chart.said for chart in charts]
    assert report["input_lens"] == [chart.prompt_tokens for chart in charts]
    assert report["output_lens"] == [chart.completion_tokens for chart in charts]


def test_random_pictures(client: Environment, charts_server: Server, tmp_path: Path) -> None:
    shapes = ("--random-mm-bucket-config", "{(112, 224, 1): 1.0}", "--random-mm-num-mm-items-range-ratio", "0")
    given = ("--dataset-name", "random-mm", "--random-input-len", "16", "--random-output-len", "8", "--ignore-eos")
    limit = ("--random-mm-limit-mm-per-prompt", '{"image": 1, "video": 0}')
    report = bench(client, charts_server, tmp_path, 6, *CHAT, *given, *shapes, *limit)
    assert report["output_lens"] == [8] * 6


def test_texts_over_completions(client: Environment, charts_server: Server, tmp_path: Path) -> None:
    given = ("--dataset-name", "random", "--random-input-len", "16", "--random-output-len", "8", "--ignore-eos")
    report = bench(client, charts_server, tmp_path, 6, *given)
    assert report["output_lens"] == [8] * 6

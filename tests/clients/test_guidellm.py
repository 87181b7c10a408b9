"""GuideLLM."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from chiasm.config.built_in import BUILT_IN_FOLDER
from tests.clients.charts import Asked, write_lines
from tests.clients.environments import Environment
from tests.e2e.servers import Server

NUM_REQUESTS = 8


@pytest.mark.parametrize("endpoint", ["chat/completions", "responses"])
def test_pictures(
    install: Callable[[str], Environment], charts_server: Server, charts: list[Asked], tmp_path: Path, endpoint: str
) -> None:
    rows: list[dict[str, object]] = [{"prompt": c.question, "image": str(c.picture)} for c in charts]
    lines = write_lines(tmp_path / "charts.jsonl", rows)
    backend = f"kind=openai_http,target={charts_server.url},request_format=/v1/{endpoint}"
    columns = {"image_column": "image", "text_column": "prompt"}
    install("guidellm").run(
        "guidellm", "run", "--backend", backend, "--profile", "kind=concurrent,streams=2",
        "--constraint", f"kind=max_requests,count={NUM_REQUESTS}",
        "--data", json.dumps({"kind": "json_file", "path": str(lines)}),
        "--data-column-mapper", json.dumps({"kind": "generative_column_mapper", "column_mappings": columns}),
        "--tokenizer", json.dumps({"kind": "hf_auto", "model": str(BUILT_IN_FOLDER)}),
        "--output", "kind=json,path=report.json", "--disable-console-interactive", cwd=tmp_path,
    )  # fmt: skip
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["benchmarks"][0]["requests"]
    assert (len(report["successful"]), report["errored"]) == (NUM_REQUESTS, [])
    for request in report["successful"]:
        body = json.loads(request["request_args"])["body"]
        own = charts_server.post(f"/v1/{endpoint}", {**body, "stream": False, "stream_options": None}).json()
        if endpoint == "responses":
            text, usage = own["output"][-1]["content"][0]["text"], own["usage"]
            counts = (usage["input_tokens"], usage["output_tokens"])
        else:
            text, usage = own["choices"][0]["message"]["content"], own["usage"]
            counts = (usage["prompt_tokens"], usage["completion_tokens"])
        assert request["output"] == text
        assert request["output_metrics"]["total_tokens"] == counts[1]
        assert request["input_metrics"]["total_tokens"] == counts[0], "no picture is counted twice"

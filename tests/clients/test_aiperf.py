"""AIPerf."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from chiasm.config.built_in import BUILT_IN_FOLDER
from tests.clients.charts import Asked, write_lines
from tests.clients.environments import Environment
from tests.e2e.servers import Server


def test_pictures(
    install: Callable[[str], Environment], charts_server: Server, charts: list[Asked], tmp_path: Path
) -> None:
    rows: list[dict[str, object]] = [{"text": c.question, "image": str(c.picture)} for c in charts]
    lines = write_lines(tmp_path / "charts.jsonl", rows)
    # With HF_HUB_OFFLINE it takes the path of a tokenizer for a name on the hub, and refuses it.
    install("aiperf").run(
        "aiperf", "profile", "--model", "chart-reader", "--url", charts_server.url, "--endpoint-type", "chat",
        "--streaming", "--input-file", str(lines), "--custom-dataset-type", "single_turn",
        "--request-count", str(len(charts)), "--concurrency", "2", "--tokenizer", str(BUILT_IN_FOLDER),
        "--artifact-dir", "out", "--ui", "none", "--use-server-token-count", "--per-chunk-usage",
        cwd=tmp_path, HF_HUB_OFFLINE="",
    )  # fmt: skip
    report = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    assert report["request_count"]["avg"] == len(charts)
    assert report["request_error_rate"]["avg"] == 0
    assert report["total_usage_prompt_tokens"]["avg"] == sum(chart.prompt_tokens for chart in charts)
    assert report["total_usage_completion_tokens"]["avg"] == sum(chart.completion_tokens for chart in charts)
    assert report["usage_prompt_cache_read_tokens"]["max"] > 0, "these charts were asked about before"
    metrics = json.loads((tmp_path / "out" / "server_metrics_export.json").read_text(encoding="utf-8"))["metrics"]
    assert metrics.keys() >= {"chiasm:time_to_first_token_seconds", "chiasm:num_requests_running"}

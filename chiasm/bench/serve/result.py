"""The block that users compare, and the JSON file, with the names of vLLM's ``bench serve``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from chiasm.bench.serve.load import Load
from chiasm.bench.serve.metrics import Distribution, Outcome, Summary

_WIDE = 50
_TITLES = {
    "ttft": ("Time to First Token", "TTFT"),
    "tpot": ("Time per Output Token (excl. 1st token)", "TPOT"),
    "itl": ("Inter-token Latency", "ITL"),
    "e2el": ("End-to-end Latency", "E2EL"),
}


def result_text(summary: Summary, load: Load, metrics: Sequence[str]) -> str:
    """The block.

    Args:
        summary: of the load.
        load: that was put.
        metrics: the latencies to show, by their names in ``METRICS``.
    """
    lines = [f"{' Serving Benchmark Result ':=^{_WIDE}}"]
    lines += [_line(name, value) for name, value in _totals(summary, load) if value is not None]
    for metric in metrics:
        title, short = _TITLES[metric]
        lines.append(f"{title:-^{_WIDE}}")
        lines += [_line(f"{name} {short} (ms):", value) for name, value in _figures(summary.latencies[metric])]
    return "\n".join([*lines, "=" * _WIDE])


def result_fields(summary: Summary, outcomes: Sequence[Outcome], *, detailed: bool) -> dict[str, Any]:
    """The figures by the keys of the JSON file.

    Args:
        summary: of the load.
        outcomes: of its requests.
        detailed: whether to give everything of each request as well.
    """
    fields: dict[str, Any] = {name: getattr(summary, name) for name in summary.__struct_fields__}
    for metric, of_metric in fields.pop("latencies").items():
        fields |= {f"{name}_{metric}_ms": getattr(of_metric, name) for name in ("mean", "median", "std")}
        fields |= {f"p{_percent(percent)}_{metric}_ms": value for percent, value in of_metric.percentiles}
    fields |= {"latencies": [o.e2el for o in outcomes], "queue_times": [o.queued for o in outcomes]}
    fields["rtfx"] = 0.0  # seconds of audio in a second: none is sent
    if detailed:
        fields |= {
            "input_lens": [o.prompt_tokens for o in outcomes],
            "output_lens": [o.num_tokens for o in outcomes],
            "ttfts": [o.ttft for o in outcomes],
            "itls": [o.itl for o in outcomes],
            "start_times": [o.sent for o in outcomes],
            "generated_texts": [o.text for o in outcomes],
            "errors": [o.error for o in outcomes],
        }
    return fields


def run_fields(load: Load, when: datetime, label: str | None, metadata: Mapping[str, str]) -> dict[str, Any]:
    """What was run, by the keys of the JSON file."""
    rate, ramp_up = load.arrivals.request_rate, load.arrivals.ramp_up
    fields = {
        "date": f"{when:%Y%m%d-%H%M%S}",
        "endpoint_type": "openai-chat",
        "backend": "openai-chat",
        "label": label,
        "model_id": load.model,
        "tokenizer_id": None,  # the server counts
        "num_prompts": len(load.samples),
        **metadata,
        "request_rate": "inf" if math.isinf(rate) else rate,
        "burstiness": load.arrivals.burstiness,
        "max_concurrency": load.max_concurrency,
    }
    if ramp_up is not None:
        fields |= {
            "ramp_up_strategy": ramp_up.strategy,
            "ramp_up_start_rps": ramp_up.start,
            "ramp_up_end_rps": ramp_up.end,
        }
    return fields


def file_name(load: Load, when: datetime, label: str | None) -> str:
    """The name of a result's file where none is given."""
    rate, ramp_up = f"{load.arrivals.request_rate}qps", load.arrivals.ramp_up
    if ramp_up is not None:
        rate = f"ramp-up-{ramp_up.strategy}-{ramp_up.start:g}qps-{ramp_up.end:g}qps"
    concurrency = "" if load.max_concurrency is None else f"-concurrency{load.max_concurrency}"
    model = load.model.rstrip("/").rpartition("/")[2]
    return f"{label or 'openai-chat'}-{rate}{concurrency}-{model}-{when:%Y%m%d-%H%M%S}.json"


def _totals(summary: Summary, load: Load) -> list[tuple[str, float | None]]:
    rate = load.arrivals.request_rate
    return [
        ("Successful requests:", summary.completed),
        ("Failed requests:", summary.failed),
        ("Maximum request concurrency:", load.max_concurrency),
        ("Request rate configured (RPS):", None if math.isinf(rate) else float(rate)),
        ("Benchmark duration (s):", summary.duration),
        ("Total input tokens:", summary.total_input_tokens),
        ("Total generated tokens:", summary.total_output_tokens),
        ("Request throughput (req/s):", summary.request_throughput),
        ("Request goodput (req/s):", summary.request_goodput),
        ("Output token throughput (tok/s):", summary.output_throughput),
        ("Peak output token throughput (tok/s):", summary.max_output_tokens_per_s),
        ("Peak concurrent requests:", float(summary.max_concurrent_requests)),
        ("Total token throughput (tok/s):", summary.total_token_throughput),
    ]


def _figures(of_metric: Distribution) -> list[tuple[str, float]]:
    percentiles = [(f"P{_percent(percent)}", value) for percent, value in of_metric.percentiles]
    return [("Mean", of_metric.mean), ("Median", of_metric.median), *percentiles]


def _line(name: str, value: float | None) -> str:
    text = f"{value:<10.2f}" if isinstance(value, float) else f"{value!s:<10}"
    return f"{name:<40} {text}"


def _percent(percent: float) -> str:
    return str(int(percent) if percent.is_integer() else percent)

"""``chiasm bench serve``: a load on any OpenAI-compatible server."""

# ruff: noqa: RUF009 - option() is dataclasses.field() with a help text

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from chiasm.cli.bench_options import (
    DatasetOptions,
    LoadOptions,
    RequestOptions,
    chosen_arrivals,
    chosen_dataset,
    request_fields,
)
from chiasm.cli.files import check_folder, check_writable, write_json
from chiasm.cli.option_groups import option, with_option_groups
from chiasm.errors import refuse
from chiasm.logs import configure_logging

if TYPE_CHECKING:
    from chiasm.bench.serve.command import ServeBenchmark
    from chiasm.bench.serve.metrics import Outcome

_MAX_SHOWN = 10  # errors
_INTERRUPTED = 130  # what shells say of a command that Ctrl-C has ended
_MAX_LABEL = 60  # characters; with the rest of its name a file's may have 255 bytes


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """Whom to ask."""

    base_url: str | None = option(None, "Of the server; http://HOST:PORT if not given.", metavar="URL")
    host: str = option("127.0.0.1", "Of the server.")
    port: int = option(8000, "Of the server.", min=1, max=65535)
    endpoint: str = option("/v1/chat/completions", "Path of its chat endpoint.")
    backend: Literal["openai-chat"] = option("openai-chat", "What is spoken.")
    model: str | None = option(None, "As requests name it; the first one that the server lists if not given.")
    header: list[str] | None = option(None, "Of every request; repeatable.", metavar="NAME=VALUE")
    api_key: str | None = option(None, "Sent as a bearer token.", envvar="OPENAI_API_KEY", show_envvar=True)
    insecure: bool = option(False, "Don't check the server's certificate.", "--insecure")
    ready_check_timeout_sec: float = option(0.0, "Seconds to wait for the server to be ready.", min=0)


@dataclass(frozen=True, kw_only=True)
class ResultOptions:
    """What to show and keep."""

    percentile_metrics: str = option("ttft,tpot,itl", "Latencies to show, of ttft, tpot, itl, e2el.")
    metric_percentiles: str = option("99", "Percentiles to show, separated by commas.")
    goodput: list[str] | None = option(
        None, "Objective in milliseconds for ttft, tpot or e2el; repeatable.", metavar="NAME:MS"
    )
    save_result: bool = option(False, "Write a JSON file.", "--save-result")
    save_detailed: bool = option(False, "With each request's times and text in it.", "--save-detailed")
    result_dir: Path | None = option(None, "Folder of the file; this one if not given.")
    result_filename: str | None = option(None, "Its name; made of rate, model and time if not given.")
    label: str | None = option(None, "Begins the file's name, and is in it.")
    metadata: list[str] | None = option(None, "Kept in the file; repeatable.", metavar="KEY=VALUE")
    disable_tqdm: bool = option(False, "Show no progress bar.", "--disable-tqdm")


@with_option_groups
def bench_serve(
    *,
    server: ServerOptions,
    dataset: DatasetOptions,
    load: LoadOptions,
    request: RequestOptions,
    result: ResultOptions,
) -> int:
    """Put a load on any OpenAI-compatible server, and print what users compare."""
    from chiasm.bench.serve.metrics import summarise
    from chiasm.bench.serve.result import file_name, result_fields, result_text, run_fields

    configure_logging("bench", "WARNING")
    metrics, percents, objectives = _metrics(result.percentile_metrics), _percents(result), _objectives(result)
    metadata = _pairs("metadata", result.metadata, "=")
    _check_file(result)
    benchmark = _benchmark(server, dataset, load, request, progress=not result.disable_tqdm)
    began = datetime.now(UTC).astimezone()
    sent, outcomes, seconds = benchmark.run()
    summary = summarise(outcomes, seconds, percents, objectives)
    typer.echo(result_text(summary, sent, metrics))
    _tell_errors(outcomes)
    if any(outcome.succeeded and outcome.completion_tokens is None for outcome in outcomes):
        typer.echo("The server counts no tokens: events with text are counted as such, prompts not at all.", err=True)
    if result.save_result or result.save_detailed:
        fields = run_fields(sent, began, result.label, metadata)
        fields |= result_fields(summary, outcomes, detailed=result.save_detailed)
        file = (result.result_dir or Path()) / (result.result_filename or file_name(sent, began, result.label))
        write_json("result_filename", file, fields)
        typer.echo(f"Written to {file}", err=True)
    if len(outcomes) < len(sent.samples):
        typer.echo(f"Stopped when {len(outcomes)} of {len(sent.samples)} requests had ended.", err=True)
        return _INTERRUPTED
    return 0 if summary.completed else 1


def _benchmark(
    server: ServerOptions, dataset: DatasetOptions, load: LoadOptions, request: RequestOptions, *, progress: bool
) -> ServeBenchmark:
    from chiasm.bench.serve.command import ServeBenchmark

    headers = _pairs("header", server.header, "=")
    if server.api_key is not None and "authorization" not in map(str.lower, headers):
        headers["Authorization"] = f"Bearer {server.api_key}"
    return ServeBenchmark(
        base_url=server.base_url or f"http://{_bracketed(server.host)}:{server.port}",
        endpoint=server.endpoint,
        model=server.model,
        samples=chosen_dataset(dataset).take(load.num_prompts, load.seed),
        arrivals=chosen_arrivals(load),
        max_concurrency=load.max_concurrency,
        num_warmups=load.num_warmups,
        seed=load.seed,
        fields=request_fields(request, dataset),
        headers=headers,
        verify=not server.insecure,
        ready_seconds=server.ready_check_timeout_sec,
        progress=progress,
    )


def _metrics(text: str) -> list[str]:
    from chiasm.bench.serve.metrics import METRICS

    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in METRICS:
            refuse("percentile_metrics", name, f"of {', '.join(METRICS)}")
    return names


def _percents(options: ResultOptions) -> list[float]:
    percents = [_number("metric_percentiles", text) for text in options.metric_percentiles.split(",") if text.strip()]
    for percent in percents:
        if not 0 <= percent <= 100:
            refuse("metric_percentiles", percent, "in [0, 100]")
    return percents


def _objectives(options: ResultOptions) -> dict[str, float]:
    from chiasm.bench.serve.metrics import GOODPUT_METRICS

    objectives = {}
    for name, text in _pairs("goodput", options.goodput, ":").items():
        if name not in GOODPUT_METRICS:
            refuse("goodput", name, f"of {', '.join(GOODPUT_METRICS)}")
        objectives[name] = _number("goodput", text)
        if not objectives[name] >= 0:
            refuse("goodput", text, "at least 0 milliseconds")
    return objectives


def _number(name: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return refuse(name, text, "a number")


def _pairs(name: str, texts: Sequence[str] | None, mark: str) -> dict[str, str]:
    """``["a=1", ...]`` as ``{"a": "1", ...}``."""
    pairs = {}
    for text in texts or ():
        key, found, value = text.partition(mark)
        if not found or not key.strip():
            refuse(name, text, f"NAME{mark}VALUE")
        pairs[key.strip()] = value.strip()
    return pairs


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _check_file(options: ResultOptions) -> None:
    """Find out before the load whether its result can be kept."""
    if not (options.save_result or options.save_detailed):
        return
    check_folder("result_dir", options.result_dir or Path())
    if options.label is not None and (os.sep in options.label or len(options.label) > _MAX_LABEL):
        refuse("label", options.label, f"the beginning of a file's name, of at most {_MAX_LABEL} characters")
    if options.result_filename is not None:
        if os.sep in options.result_filename:
            refuse("result_filename", options.result_filename, "a name; the folder is --result-dir")
        check_writable("result_filename", (options.result_dir or Path()) / options.result_filename)


def _tell_errors(outcomes: Sequence[Outcome]) -> None:
    errors = [outcome.error for outcome in outcomes if not outcome.succeeded]
    for error in errors[:_MAX_SHOWN]:
        typer.echo(f"failed: {error}", err=True)
    if len(errors) > _MAX_SHOWN:
        typer.echo(f"and {len(errors) - _MAX_SHOWN} more", err=True)

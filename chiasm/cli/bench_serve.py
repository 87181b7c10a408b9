"""``chiasm bench serve``: a load on any OpenAI-compatible server."""

# ruff: noqa: RUF009 - option() is dataclasses.field() with a help text

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from chiasm.cli.files import check_folder, check_writable, write_file
from chiasm.cli.option_groups import option, with_option_groups
from chiasm.errors import UserError, refuse
from chiasm.logs import configure_logging

if TYPE_CHECKING:
    from chiasm.bench.serve.arrivals import Arrivals
    from chiasm.bench.serve.command import ServeBenchmark
    from chiasm.bench.serve.datasets.choose import Dataset
    from chiasm.bench.serve.datasets.random_media import RandomMedia
    from chiasm.bench.serve.metrics import Outcome

DatasetOption = Literal["charts", "hf", "sharegpt4v", "random-mm", "custom"]
_MAX_SHOWN = 10  # errors


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
class DatasetOptions:
    """What to ask."""

    dataset_name: DatasetOption = option("charts", "charts and random-mm are made, the others read.")
    dataset_path: str | None = option(None, "File, folder, or the hub's name.", metavar="PATH")
    hf_name: str | None = option(None, "Whose form a local copy for hf has.")
    hf_split: str = option("train", "Of the data set.")
    image_folder: Path | None = option(None, "Where the pictures of sharegpt4v lie.")
    input_len: int = option(
        1024, "Words of text in a prompt of random-mm.", "--input-len", "--random-input-len", min=0
    )
    output_len: int | None = option(
        None, "Most tokens of an answer; by the data set if not given.", "--output-len", "--random-output-len", min=1
    )
    random_range_ratio: float = option(0.0, "How far the lengths of random-mm vary.")
    random_mm_base_items_per_request: int = option(1, "Images and videos in a prompt of random-mm.", min=0)
    random_mm_num_mm_items_range_ratio: float = option(0.0, "How far their number varies.")
    random_mm_limit_mm_per_prompt: str = option('{"image": 255, "video": 1}', "Most of each kind.", metavar="JSON")
    random_mm_bucket_config: str = option(
        "{(256, 256, 1): 0.5, (720, 1280, 1): 0.5}",
        "Sizes (height, width, frames) and their probabilities; more than one frame is a video.",
    )
    oversample: bool = option(True, "Begin again where a data set has too few requests.")
    shuffle: bool = option(False, "Take those of a file in an order drawn by lot.")


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How to ask."""

    num_prompts: int = option(100, "Requests.", min=1)
    num_warmups: int = option(1, "Requests before, one after another, that don't count.", min=0)
    max_concurrency: int | None = option(None, "Most requests under way.", min=1)
    request_rate: float = option(math.inf, "Requests a second; inf sends all at once.")
    burstiness: float = option(1.0, "1 is a Poisson process, less comes in bursts, more is even.")
    ramp_up_strategy: Literal["linear", "exponential"] | None = option(
        None, "Let the rate grow.", "--ramp-up-strategy", "--ramp-up"
    )
    ramp_up_start_rps: float | None = option(None, "Requests a second at the beginning.")
    ramp_up_end_rps: float | None = option(None, "Requests a second at the end.")
    seed: int = option(0, "Of all that is drawn.", min=0)
    ignore_eos: bool = option(False, "Let answers have their full length (random-mm does).", "--ignore-eos")
    temperature: float | None = option(None, "The server's own if not given.")
    top_p: float | None = option(None, "Likewise.")
    top_k: int | None = option(None, "Likewise.")
    extra_body: str | None = option(None, "Further fields of every request.", metavar="JSON")


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
def bench_serve(*, server: ServerOptions, dataset: DatasetOptions, load: LoadOptions, result: ResultOptions) -> int:
    """Put a load on any OpenAI-compatible server, and print what users compare."""
    from chiasm.bench.serve.metrics import summarise
    from chiasm.bench.serve.result import file_name, result_fields, result_text, run_fields, write_result

    configure_logging("bench", "WARNING")
    metrics, percents, objectives = _metrics(result.percentile_metrics), _percents(result), _objectives(result)
    metadata = _pairs("metadata", result.metadata, "=")
    benchmark = _benchmark(server, dataset, load, progress=not result.disable_tqdm)
    _check_file(result)
    began = datetime.now(UTC).astimezone()
    sent, outcomes, seconds = benchmark.run()
    summary = summarise(outcomes, seconds, percents, objectives)
    typer.echo(result_text(summary, sent, metrics))
    _tell_errors(outcomes)
    if result.save_result or result.save_detailed:
        fields = run_fields(sent, began, result.label, metadata)
        fields |= result_fields(summary, outcomes, detailed=result.save_detailed)
        file = (result.result_dir or Path()) / (result.result_filename or file_name(sent, began, result.label))
        write_file("result_filename", file, partial(write_result, fields=fields))
        typer.echo(f"Written to {file}", err=True)
    return 0 if summary.completed else 1


def _benchmark(
    server: ServerOptions, dataset: DatasetOptions, load: LoadOptions, *, progress: bool
) -> ServeBenchmark:
    from chiasm.bench.serve.command import ServeBenchmark

    headers = _pairs("header", server.header, "=")
    if server.api_key is not None:
        headers.setdefault("Authorization", f"Bearer {server.api_key}")
    return ServeBenchmark(
        base_url=server.base_url or f"http://{_bracketed(server.host)}:{server.port}",
        endpoint=server.endpoint,
        model=server.model,
        dataset=_dataset(dataset),
        num_prompts=load.num_prompts,
        arrivals=_arrivals(load),
        max_concurrency=load.max_concurrency,
        num_warmups=load.num_warmups,
        seed=load.seed,
        fields=_fields(load, dataset),
        headers=headers,
        verify=not server.insecure,
        ready_seconds=server.ready_check_timeout_sec,
        progress=progress,
    )


def _dataset(options: DatasetOptions) -> Dataset:
    from chiasm.bench.serve.datasets.choose import Dataset

    return Dataset(
        name=options.dataset_name,
        path=options.dataset_path,
        hf_name=options.hf_name,
        split=options.hf_split,
        image_folder=options.image_folder,
        output_len=options.output_len,
        random=_random(options),
        oversample=options.oversample,
        shuffle=options.shuffle,
    )


def _random(options: DatasetOptions) -> RandomMedia:
    from chiasm.bench.serve.datasets.random_media import RandomMedia, parse_buckets

    limits = _json_object("random_mm_limit_mm_per_prompt", options.random_mm_limit_mm_per_prompt)
    for kind, limit in limits.items():
        if kind not in {"image", "video"} or type(limit) is not int or limit < 0:
            refuse("random_mm_limit_mm_per_prompt", {kind: limit}, "numbers for image and video")
    return RandomMedia(
        input_len=options.input_len,
        output_len=options.output_len or RandomMedia.output_len,
        range_ratio=options.random_range_ratio,
        items=options.random_mm_base_items_per_request,
        items_range_ratio=options.random_mm_num_mm_items_range_ratio,
        limits=limits,
        buckets=parse_buckets(options.random_mm_bucket_config),
    )


def _arrivals(options: LoadOptions) -> Arrivals:
    from chiasm.bench.serve.arrivals import Arrivals, RampUp

    strategy, start, end = options.ramp_up_strategy, options.ramp_up_start_rps, options.ramp_up_end_rps
    if strategy is None:
        if start is not None or end is not None:
            raise UserError(
                "ramp_up_start_rps and ramp_up_end_rps need --ramp-up-strategy.", param="ramp_up_strategy"
            )
        return Arrivals(options.request_rate, options.burstiness)
    if start is None or end is None:
        raise UserError("A ramp-up needs --ramp-up-start-rps and --ramp-up-end-rps.", param="ramp_up_start_rps")
    return Arrivals(options.request_rate, options.burstiness, RampUp(strategy, start, end))


def _fields(options: LoadOptions, dataset: DatasetOptions) -> dict[str, Any]:
    chosen = {name: getattr(options, name) for name in ("temperature", "top_p", "top_k")}
    fields = {name: value for name, value in chosen.items() if value is not None}
    if options.ignore_eos or dataset.dataset_name == "random-mm":
        fields["ignore_eos"] = True
    return fields | (_json_object("extra_body", options.extra_body) if options.extra_body else {})


def _json_object(name: str, text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError:
        value = None
    return value if isinstance(value, dict) else refuse(name, text, "a JSON object")


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

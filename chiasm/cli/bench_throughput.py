"""``chiasm bench throughput``: requests that are all there at once, without a server."""

from __future__ import annotations

from dataclasses import dataclass

import typer

from chiasm.cli import engine as engines
from chiasm.cli.bench_options import DatasetOptions, chosen_dataset
from chiasm.cli.files import check_writable, write_json
from chiasm.cli.option_groups import option, with_option_groups
from chiasm.cli.options import Checkpoint, EngineOptions, FiguresFile
from chiasm.logs import configure_logging


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """How much is asked."""

    num_prompts: int = option(100, "Requests.", min=1)
    ignore_eos: bool = option(False, "Let answers have their full length (random-mm does).", "--ignore-eos")
    temperature: float = option(0.0, "Of the answers.")
    disable_tqdm: bool = option(False, "Show no progress bar.", "--disable-tqdm")


@with_option_groups
def throughput(
    model: Checkpoint = None,
    *,
    json: FiguresFile = None,
    batch: BatchOptions,
    dataset: DatasetOptions,
    engine: EngineOptions,
) -> int:
    """Answer many requests that are all there at once, without a server."""
    from chiasm.bench.throughput import measure_throughput, throughput_text

    configure_logging("bench", "WARNING")
    if json:
        check_writable("json", json)
    ignore_eos = batch.ignore_eos or dataset.dataset_name == "random-mm"
    found = measure_throughput(
        engines.located_config(model, engine),
        chosen_dataset(dataset).take(batch.num_prompts, engine.seed),
        sampling={"temperature": batch.temperature, "ignore_eos": ignore_eos},
        chat_template=engine.chat_template,
        progress=not batch.disable_tqdm,
    )
    typer.echo(throughput_text(found))
    if json:
        write_json("json", json, found)
    return 0

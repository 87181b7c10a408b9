"""``chiasm bench latency``: the time of one whole batch."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli import engine as engines
from chiasm.cli.files import check_folder, check_writable, write_json
from chiasm.cli.option_groups import option, with_option_groups
from chiasm.cli.options import Checkpoint, EngineOptions, FiguresFile
from chiasm.errors import refuse
from chiasm.logs import configure_logging

if TYPE_CHECKING:
    from chiasm.bench.latency import Batch


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """What is asked, and how often."""

    input_len: int = option(32, "Tokens of text in each prompt.", min=1)
    output_len: int = option(128, "Tokens of each answer.", min=1)
    batch_size: int = option(8, "Prompts.", min=1)
    num_images: int = option(1, "Images in each prompt; their tokens come on top.", min=0)
    image_size: str = option("448x448", "Height and width of an image.", metavar="HxW")
    num_iters_warmup: int = option(10, "Batches before those that count.", min=0)
    num_iters: int = option(30, "Batches that count.", min=1)


@with_option_groups
def latency(
    model: Checkpoint = None,
    *,
    json: FiguresFile = None,
    profile: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Run one more batch under torch's profiler; each rank writes a trace for Perfetto."
        ),
    ] = None,
    batch: BatchOptions,
    engine: EngineOptions,
) -> int:
    """Time a whole batch, from its prompts to its last token, without a server."""
    from chiasm.bench.latency import measure_latency
    from chiasm.bench.report import latency_text, profile_text

    configure_logging("bench", "WARNING")
    asked = _batch(batch)
    if json:
        check_writable("json", json)
    if profile:
        check_folder("profile", profile)
    found = measure_latency(
        engines.located_config(model, engine),
        asked,
        num_warm=batch.num_iters_warmup,
        num_timed=batch.num_iters,
        profile_folder=profile,
        chat_template=engine.chat_template,
    )
    typer.echo(latency_text(found))
    if found.profile is not None:
        typer.echo(profile_text(found.profile))
    if json:
        write_json("json", json, found)
    return 0


def _batch(options: BatchOptions) -> Batch:
    from chiasm.bench.latency import Batch

    size = re.fullmatch(r"([1-9]\d{0,4})x([1-9]\d{0,4})", options.image_size)
    if size is None:
        refuse("image_size", options.image_size, "height x width in pixels, such as 448x448")
    return Batch(
        num_prompts=options.batch_size,
        input_len=options.input_len,
        output_len=options.output_len,
        num_images=options.num_images,
        image_height=int(size[1]),
        image_width=int(size[2]),
    )

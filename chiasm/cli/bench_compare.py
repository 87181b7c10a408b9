"""``chiasm bench compare`` and ``chiasm bench modes``: results side by side."""

# ruff: noqa: RUF009 - option() is dataclasses.field() with a help text

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from chiasm.cli.bench_options import (
    DatasetOptions,
    LoadOptions,
    RequestOptions,
    chosen_arrivals,
    chosen_dataset,
    request_fields,
)
from chiasm.cli.files import check_folder, check_writable, write_file, write_json
from chiasm.cli.option_groups import option, with_option_groups
from chiasm.errors import refuse
from chiasm.logs import configure_logging

if TYPE_CHECKING:
    from chiasm.bench.results import Group

# Answers would come from caches, in whichever mode runs second or has asked before.
_NO_CACHES = ("--no-enable-prefix-caching", "--mm-encoder-cache-gb", "0", "--mm-processor-cache-gb", "0")


@dataclass(frozen=True, kw_only=True)
class PictureOptions:
    """How results are shown."""

    markdown: bool = option(False, "Print a table for a pull request.", "--markdown")
    png: Path | None = option(None, "Also draw a picture; needs chiasm[plot].", metavar="FILE")
    html: Path | None = option(None, "Also write a page that needs nothing else.", metavar="FILE")


@dataclass(frozen=True, kw_only=True)
class ModesOptions:
    """Which servers, and how often."""

    tensor_parallel_size: int = option(2, "Ranks of each server.", "--tensor-parallel-size", "-tp", min=2)
    mm_encoder_tp_mode: list[str] | None = option(
        None, "weights, data or auto; repeatable; all three if not given.", metavar="MODE"
    )
    rounds: int = option(3, "Runs of each mode.", min=1)
    caches: bool = option(False, "Leave the caches of prefixes, features and processed images on.")
    start_timeout: float = option(1800.0, "Seconds that a server may take to be ready.", min=1)
    result_dir: Path | None = option(None, "Folder for the JSON file of every run.")


@with_option_groups
def compare(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Results of bench serve; the first label is the base."),
    ],
    *,
    pictures: PictureOptions,
) -> int:
    """Hold results of bench serve against each other; those with one label are runs of the same thing."""
    from chiasm.bench.results import read_groups

    configure_logging("bench", "WARNING")
    _check_pictures(pictures)
    _show(read_groups(files), pictures)
    return 0


@with_option_groups
def modes(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL] [-- FLAGS]", help="Checkpoint, and further flags of chiasm serve after --."),
    ] = None,
    *,
    server: ModesOptions,
    dataset: DatasetOptions,
    load: LoadOptions,
    request: RequestOptions,
    pictures: PictureOptions,
) -> int:
    """Start a server in each mode of the encoder in turn, put one load on all, and compare."""
    from chiasm.bench.modes import ModesBenchmark
    from chiasm.bench.serve.command import ServeBenchmark

    configure_logging("bench", "WARNING")
    _check_pictures(pictures)
    if server.result_dir is not None:
        check_folder("result_dir", server.result_dir)
    fixed = ("--tensor-parallel-size", str(server.tensor_parallel_size), "--no-ui")
    benchmark = ServeBenchmark(
        base_url="http://127.0.0.1",
        samples=chosen_dataset(dataset).take(load.num_prompts, load.seed),
        arrivals=chosen_arrivals(load),
        max_concurrency=load.max_concurrency,
        num_warmups=load.num_warmups,
        seed=load.seed,
        fields=request_fields(request, dataset),
        progress=False,
    )
    groups = ModesBenchmark(
        arguments=(*(arguments or ()), *fixed, *(() if server.caches else _NO_CACHES)),
        benchmark=benchmark,
        modes=_chosen_modes(server),
        rounds=server.rounds,
        start_seconds=server.start_timeout,
    ).run(lambda line: typer.echo(line, err=True), partial(_keep, server.result_dir))
    _show(groups, pictures)
    return 0


def _chosen_modes(options: ModesOptions) -> Sequence[str]:
    from chiasm.bench.modes import MODES

    modes = tuple(dict.fromkeys(options.mm_encoder_tp_mode or MODES))
    for mode in modes:
        if mode not in MODES:
            refuse("mm_encoder_tp_mode", mode, f"one of {', '.join(MODES)}")
    return modes


def _check_pictures(pictures: PictureOptions) -> None:
    for name in ("png", "html"):
        if (file := getattr(pictures, name)) is not None:
            check_writable(name, file)


def _keep(folder: Path | None, mode: str, number: int, run: Mapping[str, Any]) -> None:
    if folder is not None:
        write_json("result_dir", folder / f"{mode}-{number}.json", run)


def _show(groups: Sequence[Group], pictures: PictureOptions) -> None:
    from chiasm.bench.compare import Table
    from chiasm.bench.plots import write_html, write_png

    table = Table(groups)
    typer.echo(table.as_markdown() if pictures.markdown else table.as_text())
    if pictures.png is not None:
        write_file("png", pictures.png, partial(write_png, groups=groups))
    if pictures.html is not None:
        write_file("html", pictures.html, partial(write_html, groups=groups, table=table))

"""``chiasm eval charts``: how many questions about charts a model answers rightly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chiasm.logs import configure_logging

eval_app = typer.Typer(no_args_is_help=True, help="Measure what a model answers.")


@eval_app.callback()
def _group() -> None:
    """Measure what a model answers."""


@eval_app.command()
def charts(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Folder or hub name of a checkpoint; the built-in one if not given."),
    ] = None,
    *,
    limit: Annotated[int, typer.Option(help="How many charts, one question each.", min=1)] = 1000,
    seed: Annotated[int, typer.Option(help="The first of the held-out seeds.", min=0)] = 0,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report here.")] = None,
    mm_encoder_tp_mode: Annotated[
        list[str] | None,
        typer.Option(metavar="MODE", help="weights, data or auto; repeatable; all three if not given."),
    ] = None,
    tensor_parallel_size: Annotated[
        list[int] | None, typer.Option(help="Number of ranks; repeatable; 1 and 2 if not given.", min=1)
    ] = None,
    dtype: Annotated[str, typer.Option(help="Type of weights and activations.")] = "auto",
) -> None:
    """Ask about held-out charts; accuracy is ChartQA's relaxed one."""
    from chiasm.evals.runner import MODES, NUM_RANKS, Setup, run_charts_eval

    configure_logging("eval", "WARNING")
    modes, ranks = mm_encoder_tp_mode or MODES, tensor_parallel_size or NUM_RANKS
    setups = [Setup(mode, num_ranks) for num_ranks in ranks for mode in modes]
    report = run_charts_eval(
        model, limit=limit, seed=seed, json_file=json, setups=setups, settings={"dtype": dtype}, tell=_tell
    )
    typer.echo(report.as_text())


def _tell(line: str) -> None:
    typer.echo(line, err=True)

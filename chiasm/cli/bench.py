"""``chiasm bench encoder``: how well the vision encoder uses its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chiasm.errors import UserError
from chiasm.logs import configure_logging

bench_app = typer.Typer(no_args_is_help=True, help="Measure parts of the engine.")


@bench_app.callback()
def _group() -> None:
    """Measure parts of the engine."""


@bench_app.command()
def encoder(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Folder or hub name of a checkpoint; Qwen3-VL-8B's tower if not given."),
    ] = None,
    *,
    simulate: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Predict for N ranks of the rates below, run nothing; repeatable.", min=1),
    ] = None,
    workload: Annotated[
        str,
        typer.Option(metavar="NAME|FILE.json", help="A named one, a list of [time, rows, columns], or all named."),
    ] = "named",
    tflops: Annotated[float, typer.Option(help="10^12 operations in a second on each simulated rank.")] = 500.0,
    link_gbs: Annotated[float, typer.Option(help="10^9 bytes that it receives in a second.")] = 400.0,
    link_us: Annotated[float, typer.Option(help="Fixed time of a collective in microseconds.", min=0.0)] = 10.0,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the rows here.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a timeline of the ranks, for Perfetto.")
    ] = None,
) -> None:
    """Compare whole items, whole frames (data), rows (auto) and sharded weights."""
    from chiasm.bench.machines import gpu_rates
    from chiasm.bench.report import as_text
    from chiasm.bench.simulate import simulate as run_simulation

    configure_logging("bench", "WARNING")
    if not simulate:
        raise UserError("bench encoder needs --simulate N, a number of ranks.", param="simulate")
    rates = gpu_rates(_above_zero("tflops", tflops), _above_zero("link-gbs", link_gbs), link_us)
    rows = run_simulation(
        model=model, workload=workload, num_ranks=simulate, rates=rates, json_file=json, trace_file=trace
    )
    typer.echo(as_text(rows))


def _above_zero(name: str, value: float) -> float:
    if not value > 0:
        raise UserError(f"{name} must be above 0, got {value}.", param=name)
    return value

"""``chiasm bench encoder``: how well the vision encoder uses its ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from chiasm.config.checkpoint import resolve_checkpoint
from chiasm.config.engine import DeviceName, DTypeName, EngineConfig
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
        typer.Argument(
            metavar="MODEL",
            help="Folder or hub name of a checkpoint. If not given: the built-in one, simulated Qwen3-VL-8B's tower.",
        ),
    ] = None,
    *,
    workload: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE.json",
            help="A named one, named or small for several, or a list of [time, rows, columns].",
        ),
    ] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the rows here.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a timeline of the ranks, for Perfetto.")
    ] = None,
    tensor_parallel_size: Annotated[
        int, typer.Option("--tensor-parallel-size", "-tp", help="Number of ranks.", min=2)
    ] = 2,
    threads: Annotated[int, typer.Option(help="Threads of each rank on a CPU.", min=1)] = 1,
    repeats: Annotated[int, typer.Option(help="Runs of each plan; their median counts.", min=1)] = 5,
    dtype: Annotated[DTypeName, typer.Option(help="Type of weights and activations.")] = "auto",
    device: Annotated[DeviceName, typer.Option(help="Where the ranks compute.")] = "auto",
    simulate: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Run nothing: predict for N ranks of the rates below; repeatable.", min=1),
    ] = None,
    tflops: Annotated[float, typer.Option(help="10^12 operations in a second on each simulated rank.")] = 500.0,
    link_gbs: Annotated[float, typer.Option(help="10^9 bytes that it receives in a second.")] = 400.0,
    link_us: Annotated[float, typer.Option(help="Fixed time of a collective in microseconds.", min=0.0)] = 10.0,
) -> None:
    """Compare whole items, whole frames (data), rows (auto) and sharded weights."""
    from chiasm.bench.report import as_text

    configure_logging("bench", "WARNING")
    if simulate:
        from chiasm.bench.machines import gpu_rates
        from chiasm.bench.simulate import simulate as run_simulation

        rates = gpu_rates(_above_zero("tflops", tflops), _above_zero("link-gbs", link_gbs), link_us)
        rows = run_simulation(model, workload or "named", simulate, rates, json_file=json, trace_file=trace)
    else:
        from chiasm.bench.measure import measure

        config = EngineConfig(
            model=str(resolve_checkpoint(model)),
            dtype=dtype,
            device=device,
            tensor_parallel_size=tensor_parallel_size,
        )
        rows = measure(config, workload or "small", threads, repeats, json_file=json, trace_file=trace)
    typer.echo(as_text(rows))


def _above_zero(name: str, value: float) -> float:
    if not value > 0:
        raise UserError(f"{name} must be above 0, got {value}.", param=name)
    return value

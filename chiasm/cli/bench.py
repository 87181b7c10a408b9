"""``chiasm bench``: how well the vision encoder uses its ranks; and the other commands of the group."""

# ruff: noqa: RUF009 - option() is dataclasses.field() with a help text

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from chiasm.cli.bench_compare import compare, modes
from chiasm.cli.bench_serve import bench_serve
from chiasm.cli.bench_throughput import throughput
from chiasm.cli.files import check_writable, write_file, write_json
from chiasm.cli.given import refuse_given
from chiasm.cli.latency import latency
from chiasm.cli.option_groups import option, with_option_groups
from chiasm.config.checkpoint import resolve_checkpoint
from chiasm.config.engine import DeviceName, DTypeName, EngineConfig
from chiasm.errors import refuse
from chiasm.logs import configure_logging

if TYPE_CHECKING:
    from chiasm.bench.encoder import Outcome

_RATES = (1e-3, 1e6)
_MODEL_HELP = "Folder or hub name of a checkpoint. If not given: the built-in one, simulated Qwen3-VL-8B's tower."
_WORKLOAD_HELP = "A named one, named or small for several, or a list of [time, rows, columns]."
_SIMULATE_HELP = "Run nothing: predict for N ranks of the rates below; repeatable."

bench_app = typer.Typer(no_args_is_help=True, help="Measure parts of the engine.")


@bench_app.callback()
def _group() -> None:
    """Measure parts of the engine."""


bench_app.command()(latency)
bench_app.command("serve")(bench_serve)
for _command in (throughput, compare, modes):
    bench_app.command()(_command)


@dataclass(frozen=True, kw_only=True)
class MeasuredOptions:
    """Real ranks."""

    tensor_parallel_size: int = option(2, "Number of ranks.", "--tensor-parallel-size", "-tp", min=2)
    threads: int = option(1, "Threads of each rank on a CPU.", min=1)
    repeats: int = option(5, "Runs of each plan; their median counts.", min=1)
    dtype: DTypeName = option("auto", "Type of weights and activations.")
    device: DeviceName = option("auto", "Where the ranks compute.")


@dataclass(frozen=True, kw_only=True)
class SimulatedOptions:
    """Ranks that are not there."""

    tflops: float = option(500.0, "10^12 operations in a second on each simulated rank.")
    link_gbs: float = option(400.0, "10^9 bytes that it receives in a second.")
    link_us: float = option(10.0, "Fixed time of a collective in microseconds.")


@bench_app.command()
@with_option_groups
def encoder(
    context: typer.Context,
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help=_MODEL_HELP)] = None,
    *,
    workload: Annotated[str | None, typer.Option(metavar="NAME|FILE.json", help=_WORKLOAD_HELP)] = None,
    json: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the rows here.")] = None,
    trace: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a timeline of the ranks, for Perfetto.")
    ] = None,
    simulate: Annotated[list[int] | None, typer.Option(metavar="N", help=_SIMULATE_HELP, min=1, max=1024)] = None,
    measured: MeasuredOptions,
    simulated: SimulatedOptions,
) -> int:
    """Compare whole items, whole frames (data), rows (auto) and sharded weights."""
    from chiasm.bench.report import as_text
    from chiasm.bench.trace import write_trace

    configure_logging("bench", "WARNING")
    unused = MeasuredOptions if simulate else SimulatedOptions
    rule = "can't be given with simulate" if simulate else "can only be given with simulate"
    refuse_given(context, (field.name for field in fields(unused)), rule)
    for name, file in (("json", json), ("trace", trace)):
        if file:
            check_writable(name, file)
    with_charts = trace is not None
    if simulate:
        outcome = _simulate(model, workload or "named", simulate, simulated, with_charts=with_charts)
    else:
        outcome = _measure(model, workload or "small", measured, with_charts=with_charts)
    typer.echo(as_text(outcome.rows))  # first, as a file may fail after all
    if json:
        write_json("json", json, outcome.rows)
    if trace:
        write_file("trace", trace, partial(write_trace, charts=outcome.charts))
    return 0


def _simulate(
    model: str | None, workload: str, num_ranks: Sequence[int], options: SimulatedOptions, *, with_charts: bool
) -> Outcome:
    from chiasm.bench.machines import gpu_rates
    from chiasm.bench.simulate import simulate

    rates = gpu_rates(
        _within("tflops", options.tflops, *_RATES),
        _within("link-gbs", options.link_gbs, *_RATES),
        _within("link-us", options.link_us, 0, 1e6),
    )
    return simulate(model, workload, num_ranks, rates, with_charts=with_charts)


def _measure(model: str | None, workload: str, options: MeasuredOptions, *, with_charts: bool) -> Outcome:
    from chiasm.bench.measure import measure

    config = EngineConfig(
        model=str(resolve_checkpoint(model)),
        dtype=options.dtype,
        device=options.device,
        tensor_parallel_size=options.tensor_parallel_size,
    )
    return measure(config, workload, options.threads, options.repeats, with_charts=with_charts)


def _within(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        refuse(name, value, f"in [{low:g}, {high:g}]")
    return value

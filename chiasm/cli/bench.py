"""``chiasm bench encoder``: how well the vision encoder uses its ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from chiasm.config.checkpoint import resolve_checkpoint
from chiasm.config.engine import DeviceName, DTypeName, EngineConfig
from chiasm.errors import UserError, refuse
from chiasm.logs import configure_logging

_RATES = (1e-3, 1e6)
_MEASURED = ("tensor_parallel_size", "threads", "repeats", "dtype", "device")
_SIMULATED = ("tflops", "link_gbs", "link_us")

bench_app = typer.Typer(no_args_is_help=True, help="Measure parts of the engine.")


@bench_app.callback()
def _group() -> None:
    """Measure parts of the engine."""


@bench_app.command()
def encoder(
    context: typer.Context,
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
        typer.Option(
            metavar="N", help="Run nothing: predict for N ranks of the rates below; repeatable.", min=1, max=1024
        ),
    ] = None,
    tflops: Annotated[float, typer.Option(help="10^12 operations in a second on each simulated rank.")] = 500.0,
    link_gbs: Annotated[float, typer.Option(help="10^9 bytes that it receives in a second.")] = 400.0,
    link_us: Annotated[float, typer.Option(help="Fixed time of a collective in microseconds.")] = 10.0,
) -> None:
    """Compare whole items, whole frames (data), rows (auto) and sharded weights."""
    from chiasm.bench.report import as_text, write_rows
    from chiasm.bench.trace import write_trace

    configure_logging("bench", "WARNING")
    _refuse_given(context, _SIMULATED if not simulate else _MEASURED, has_simulate=bool(simulate))
    for name, file in (("json", json), ("trace", trace)):
        if file:
            _check_writable(name, file)
    if simulate:
        from chiasm.bench.machines import gpu_rates
        from chiasm.bench.simulate import simulate as run_simulation

        rates = gpu_rates(
            _within("tflops", tflops, *_RATES),
            _within("link-gbs", link_gbs, *_RATES),
            _within("link-us", link_us, 0, 1e6),
        )
        outcome = run_simulation(model, workload or "named", simulate, rates, with_charts=trace is not None)
    else:
        from chiasm.bench.measure import measure

        config = EngineConfig(
            model=str(resolve_checkpoint(model)),
            dtype=dtype,
            device=device,
            tensor_parallel_size=tensor_parallel_size,
        )
        outcome = measure(config, workload or "small", threads, repeats, with_charts=trace is not None)
    typer.echo(as_text(outcome.rows))  # first, as a file may fail after all
    if json:
        _write("json", json, partial(write_rows, rows=outcome.rows))
    if trace:
        _write("trace", trace, partial(write_trace, charts=outcome.charts))


def _refuse_given(context: typer.Context, names: Sequence[str], *, has_simulate: bool) -> None:
    """Options that would be passed over in silence.

    Raises:
        UserError: naming the first.
    """
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = name.replace("_", "-")
            rule = "can't be given with simulate" if has_simulate else "can only be given with simulate"
            raise UserError(f"{option} {rule}.", param=option)


def _within(name: str, value: float, low: float, high: float) -> float:
    if not low <= value <= high:
        refuse(name, value, f"in [{low:g}, {high:g}]")
    return value


def _check_writable(name: str, file: Path) -> None:
    """Find out before minutes of measuring; leaves no file behind.

    Raises:
        UserError: if it can't be written.
    """
    is_new = not file.exists()
    _write(name, file, _touch)
    if is_new:
        file.unlink()


def _touch(file: Path) -> None:
    with file.open("ab"):
        pass


def _write(name: str, file: Path, write: Callable[[Path], None]) -> None:
    try:
        write(file)
    except OSError as error:
        raise UserError(f"{name} {file} can't be written: {error.strerror}.", param=name) from error

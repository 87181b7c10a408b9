"""``chiasm eval``: how many questions a model answers rightly."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from chiasm.cli.files import check_writable, write_json
from chiasm.cli.given import refuse_given
from chiasm.config.engine import EncoderMode
from chiasm.errors import refuse
from chiasm.logs import configure_logging

if TYPE_CHECKING:
    from chiasm.evals.published import TaskReport
    from chiasm.evals.runner import ChartsReport

eval_app = typer.Typer(no_args_is_help=True, help="Measure what a model answers.")

_MODEL_HELP = "Checkpoint, the built-in one if not given; with --base-url the server's name for it."
_MODES_HELP = "weights, data or auto; repeatable; all three if not given."
_MODES_OF_TASKS_HELP = "weights, data or auto; repeatable; the default alone if not given."
_DATA_HELP = "Files with the data, or a folder; charts, for chartqa, are drawn; from the hub if not given."
_LIMIT_HELP = "How many questions, of each subject; all if not given."

_Model = Annotated[str | None, typer.Argument(metavar="MODEL", help=_MODEL_HELP)]
_BaseUrl = Annotated[str | None, typer.Option(metavar="URL", help="Ask a server instead.")]
_Json = Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the report here.")]
_DType = Annotated[str, typer.Option(help="Type of weights and activations.")]

_ChatTemplate = Annotated[str | None, typer.Option(help="Jinja template for conversations, or a file with one.")]

_OF_THE_ENGINE = ("mm_encoder_tp_mode", "tensor_parallel_size", "max_model_len", "dtype", "chat_template")


@eval_app.callback()
def _group() -> None:
    """Measure what a model answers."""


@eval_app.command()
def charts(
    context: typer.Context,
    model: _Model = None,
    *,
    limit: Annotated[int, typer.Option(help="How many charts, one question each.", min=1)] = 200,
    seed: Annotated[int, typer.Option(help="The first of the held-out seeds.", min=0)] = 0,
    base_url: _BaseUrl = None,
    json: _Json = None,
    mm_encoder_tp_mode: Annotated[list[str] | None, typer.Option(metavar="MODE", help=_MODES_HELP)] = None,
    tensor_parallel_size: Annotated[
        list[int] | None,
        typer.Option("--tensor-parallel-size", "-tp", help="Ranks; repeatable; 1 and 2 if not given.", min=1),
    ] = None,
    dtype: _DType = "auto",
    chat_template: _ChatTemplate = None,
) -> None:
    """Ask about held-out charts; accuracy is ChartQA's relaxed one."""
    from chiasm.evals.runner import MODES, NUM_RANKS, Setup, run_charts_eval

    configure_logging("eval", "WARNING")
    _check(context, base_url, json)
    modes, ranks = _checked_modes(mm_encoder_tp_mode or MODES), dict.fromkeys(tensor_parallel_size or NUM_RANKS)
    report = run_charts_eval(
        model,
        limit=limit,
        seed=seed,
        base_url=base_url,
        setups=[Setup(mode, num_ranks) for num_ranks in ranks for mode in modes],
        settings={"dtype": dtype, "chat_template": chat_template},
        tell=_tell,
    )
    _show(report, json)


def _published(task: str) -> Callable[..., None]:
    """The command that runs a task of lm-eval."""

    def run(
        context: typer.Context,
        model: _Model = None,
        *,
        data: Annotated[str | None, typer.Option(metavar="PATH", help=_DATA_HELP)] = None,
        limit: Annotated[int | None, typer.Option(help=_LIMIT_HELP, min=1)] = None,
        base_url: _BaseUrl = None,
        json: _Json = None,
        mm_encoder_tp_mode: Annotated[
            list[str] | None, typer.Option(metavar="MODE", help=_MODES_OF_TASKS_HELP)
        ] = None,
        tensor_parallel_size: Annotated[int, typer.Option("--tensor-parallel-size", "-tp", help="Ranks.", min=1)] = 1,
        max_model_len: Annotated[int | None, typer.Option(help="Longest prompt and answer together.")] = None,
        dtype: _DType = "auto",
        chat_template: _ChatTemplate = None,
    ) -> None:
        from chiasm.evals.published import run_task
        from chiasm.evals.runner import Setup

        configure_logging("eval", "WARNING")
        _check(context, base_url, json)
        settings = {"dtype": dtype, "chat_template": chat_template, "max_model_len": max_model_len}
        report = run_task(
            task,
            model,
            data=data,
            limit=limit,
            base_url=base_url,
            setups=[Setup(mode, tensor_parallel_size) for mode in _checked_modes(mm_encoder_tp_mode or ("auto",))],
            settings=settings,
            tell=_tell,
        )
        _show(report, json)

    return run


for _task, _help in (
    ("chartqa", "Have lm-eval's chartqa answered; mistral-evals' two scores beside its three."),
    ("mmmu", "Have lm-eval's mmmu_val answered."),
):
    eval_app.command(_task, help=_help)(_published(_task))


def _check(context: typer.Context, base_url: str | None, json: Path | None) -> None:
    if base_url is not None:
        refuse_given(context, _OF_THE_ENGINE, "can't be given with base-url: it is up to the server")
    if json is not None:
        check_writable("json", json)


def _checked_modes(modes: Iterable[str]) -> list[str]:
    """Each once."""
    known = get_args(EncoderMode)
    for mode in modes:
        if mode not in known:
            refuse("mm-encoder-tp-mode", mode, f"one of {', '.join(known)}")
    return list(dict.fromkeys(modes))


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _show(report: ChartsReport | TaskReport, json: Path | None) -> None:
    typer.echo(report.as_text())  # first, as the file may fail after all
    if json is not None:
        write_json("json", json, report)

"""The commands, and how their errors are told."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from chiasm.cli.bench import bench_app
from chiasm.cli.dotted import join_dotted
from chiasm.cli.eval import eval_app
from chiasm.cli.generate import generate
from chiasm.cli.serve import serve
from chiasm.errors import EngineDeadError, UserError

_USAGE_ERROR = 2
_FAILURE = 1

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # its tables cut the names of options short
    context_settings={
        "max_content_width": 110,
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda name: name.replace("_", "-"),  # --max_model_len is --max-model-len
    },
)
app.command()(serve)
app.command()(generate)
app.add_typer(eval_app, name="eval")
app.add_typer(bench_app, name="bench")


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    *,
    show_version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
) -> None:
    """Serve vision-language models."""
    if show_version:
        typer.echo(f"chiasm {version('chiasm')}")
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line and return the status to exit with.

    What the user did wrong is one line on standard error, without a traceback; a bug keeps its traceback.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        status = app(args=join_dotted(arguments), prog_name="chiasm", standalone_mode=False)
    except typer.TyperException as error:
        return _tell(error.format_message(), _USAGE_ERROR)
    except UserError as error:
        return _tell(error.message, _USAGE_ERROR)
    except EngineDeadError as error:
        return _tell(str(error), _FAILURE)
    return status or 0


def _tell(message: str, status: int) -> int:
    typer.echo(f"chiasm: error: {message}", err=True)
    return status

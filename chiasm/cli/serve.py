"""``chiasm serve``."""

from __future__ import annotations

import os
from functools import partial

import typer

from chiasm.cli import engine as engines
from chiasm.cli.option_groups import with_option_groups
from chiasm.cli.options import API_KEY_VARIABLE, Checkpoint, ConfigFile, EngineOptions, ServerOptions
from chiasm.cli.settings import server_config
from chiasm.config.built_in import BUILT_IN_EXAMPLE
from chiasm.logs import configure_logging

_BUILT_IN = "No MODEL given: serving the built-in chart reader, which answers short questions about simple charts."


@with_option_groups
def serve(
    model: Checkpoint = None,
    *,
    config: ConfigFile = None,  # noqa: ARG001 - its callback has used it
    engine: EngineOptions,
    server: ServerOptions,
) -> int:
    """Serve a model over an OpenAI-compatible API."""
    from chiasm.server.run import serve as run_server

    os.environ.pop(API_KEY_VARIABLE, None)  # the engine's processes inherit the others
    configure_logging("server", server.log_level)
    if model is None:
        typer.echo(_BUILT_IN)
    config_of_engine = engines.located_config(model, engine)
    config_of_server = server_config(model, config_of_engine.model, server)
    start = partial(engines.start_engine, config_of_engine, engine.chat_template)
    return run_server(config_of_server, start, typer.echo, BUILT_IN_EXAMPLE if model is None else None)

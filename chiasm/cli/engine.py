"""Finding a checkpoint and starting an engine; what is slow to import is imported when it is needed."""

from __future__ import annotations

import msgspec

from chiasm.cli.options import EngineOptions
from chiasm.cli.settings import engine_config
from chiasm.config.checkpoint import resolve_checkpoint
from chiasm.config.engine import EngineConfig
from chiasm.server.engine import Engine


async def start_engine(config: EngineConfig, chat_template: str | None) -> Engine:
    """Load a model in processes of its own.

    Raises:
        UserError: if the model or a setting is at fault.
        EngineDeadError: if the engine could not start for another reason.
    """
    from chiasm.llm.serving import AsyncLLM

    return await AsyncLLM.start(config, chat_template)


def located_config(model: str | None, options: EngineOptions) -> EngineConfig:
    """The engine's settings with the checkpoint's folder, after a download if need be.

    Args:
        model: folder or hub name; None for the built-in one.
        options: what the user gave.

    Raises:
        UserError: for a value out of range, or if there is no such checkpoint.
    """
    config = engine_config(model or "", options)  # first: a bad option should not wait for a download
    folder = resolve_checkpoint(model, revision=options.revision, load_format=options.load_format)
    return msgspec.structs.replace(config, model=str(folder))

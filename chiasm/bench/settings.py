"""From the settings of a command to those of ``LLM``."""

from __future__ import annotations

from typing import Any

from chiasm.config.engine import EngineConfig


def llm_settings(config: EngineConfig) -> dict[str, Any]:
    """As keyword arguments of ``LLM``, which has defaults of its own for what is None."""
    own = {name: getattr(config, name) for name in config.__struct_fields__ if name not in ("model", "media")}
    media = {name: getattr(config.media, name) for name in config.media.__struct_fields__}
    return {name: value for name, value in {**own, **media}.items() if value is not None}

"""Keyword arguments of the offline API as the engine's settings."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from math import inf
from typing import Any

import msgspec

from chiasm.config.checkpoint import resolve_checkpoint
from chiasm.config.engine import EngineConfig, MediaConfig
from chiasm.errors import UserError

_ENGINE_FIELDS = frozenset(EngineConfig.__struct_fields__) - {"model", "media"}
_MEDIA_FIELDS = frozenset(MediaConfig.__struct_fields__)


def engine_config(model: str | None, settings: Mapping[str, Any], *, revision: str | None = None) -> EngineConfig:
    """Settings by name, engine and media together.

    Nobody watches the tokens of a batch come, so the encoder's steps are not bounded unless a setting says so.

    Args:
        model: folder or hub name; None takes the built-in one.
        settings: fields of ``EngineConfig`` and ``MediaConfig``.
        revision: of a hub checkpoint.

    Raises:
        UserError: for a name that neither has, a value of a wrong type or one out of range.
    """
    known = _ENGINE_FIELDS | _MEDIA_FIELDS
    for name in settings:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; known: {', '.join(sorted(known))}."
            raise UserError(f"LLM has no setting {name!r}{hint}", param=name)
    folder = resolve_checkpoint(model, revision=revision, load_format=settings.get("load_format", "auto"))
    media = {name: value for name, value in settings.items() if name in _MEDIA_FIELDS}
    engine = {name: value for name, value in settings.items() if name in _ENGINE_FIELDS}
    if settings.get("encoder_step_budget_patches") is None:
        engine = {"encoder_step_budget_ms": inf, **engine}
    try:
        return msgspec.convert({**engine, "model": str(folder), "media": media}, EngineConfig)
    except msgspec.ValidationError as error:
        # A range error of ours arrives wrapped; its own words name the field.
        cause = error.__cause__
        raise (cause if isinstance(cause, UserError) else UserError(f"LLM: {error}")) from error

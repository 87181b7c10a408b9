"""From options to the configurations of an engine and a server. Pure: nothing is read or looked up here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from chiasm.cli.options import EngineOptions, SamplingOptions, ServerOptions
from chiasm.config.built_in import BUILT_IN_NAME
from chiasm.config.engine import EngineConfig, MediaConfig, without_nulls
from chiasm.config.server import ServerConfig
from chiasm.errors import UserError, refuse
from chiasm.schema.sampling import SamplingParams


def engine_config(model: str, options: EngineOptions) -> EngineConfig:
    """The engine's settings.

    Args:
        model: folder of the checkpoint.
        options: what the user gave.

    Raises:
        UserError: for a value out of range.
    """
    given = _given(options)
    for name in ("limit_mm_per_prompt", "mm_processor_kwargs"):
        if name in given:
            given[name] = _whole_numbers(name, given[name])
    if "media_io_kwargs" in given:
        given["media_io_kwargs"] = _json_object("media_io_kwargs", given["media_io_kwargs"], {"video": {"fps": 2}})
    media = {name: value for name, value in given.items() if name in MediaConfig.__struct_fields__}
    engine = {name: value for name, value in given.items() if name in EngineConfig.__struct_fields__}
    return EngineConfig(model=model, media=MediaConfig(**media), **engine)


def server_config(model: str | None, folder: str, options: ServerOptions) -> ServerConfig:
    """The server's settings.

    Args:
        model: the checkpoint as the user named it; None for the built-in one.
        folder: where it is.
        options: what the user gave.

    Raises:
        UserError: for a value out of range.
    """
    given = _given(options)
    names = given.pop("served_model_name", None) or ((BUILT_IN_NAME,) if model is None else ())
    api_keys = given.pop("api_key", ())
    server = {name: value for name, value in given.items() if name in ServerConfig.__struct_fields__}
    return ServerConfig(model=model or folder, served_model_names=names, api_keys=api_keys, **server)


def sampling_params(options: SamplingOptions, defaults: Mapping[str, Any]) -> SamplingParams:
    """Decoding parameters: what the user gave, else what the checkpoint recommends.

    Raises:
        UserError: for a value out of range.
    """
    return SamplingParams(**{"max_tokens": None, **defaults, **_given(options)})


def _given(options: EngineOptions | ServerOptions | SamplingOptions) -> dict[str, Any]:
    values = {name: value for name, value in asdict(options).items() if value is not None}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _whole_numbers(name: str, text: str) -> dict[str, int]:
    value = _json_object(name, text, {"image": 4})
    for key, number in value.items():
        if type(number) is not int:
            refuse(f"{name}.{key}", number, "a whole number")
    return value


def _json_object(name: str, text: str, example: Mapping[str, Any]) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UserError(f"{name} is not valid JSON: {error}.", param=name) from error
    if not isinstance(value, dict):
        refuse(name, value, f"a JSON object such as {json.dumps(example)}")
    return without_nulls(value)

"""Finding a checkpoint folder and reading its JSON files.

The files are read as they are, without transformers, so that a process that holds no tensors starts in a moment;
a family's file gives them their meaning.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from chiasm.config.built_in import BUILT_IN_FOLDER
from chiasm.config.engine import LoadFormat
from chiasm.errors import UserError, shorten

# What families read parts of.
_PARTS = ("text_config", "vision_config", "rope_scaling", "rope_parameters")
_WANTED_FILES = ("*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
_WEIGHT_FILES = ("*.safetensors",)


def resolve_checkpoint(model: str | None, *, revision: str | None = None, load_format: LoadFormat = "auto") -> Path:
    """The folder of a checkpoint: ``model`` itself if it is one, else a snapshot from the Hugging Face hub.

    Args:
        model: folder or hub name; None takes the built-in one.
        revision: of a hub checkpoint.
        load_format: with "dummy" no weights are downloaded.

    Raises:
        UserError: if it is neither a folder with a ``config.json`` nor to be had from the hub.
    """
    if model is None:
        return BUILT_IN_FOLDER
    folder = Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise UserError(f"model folder {model!r} has no config.json.", param="model")
        return folder.resolve()
    if model.startswith((".", "/", "~")) or model.count("/") != 1:
        raise UserError(f"model {model!r} is neither a folder nor a hub name of the form owner/name.", param="model")
    return _download(model, revision, _WANTED_FILES if load_format == "dummy" else (*_WANTED_FILES, *_WEIGHT_FILES))


def _download(model: str, revision: str | None, files: Sequence[str]) -> Path:
    import huggingface_hub  # imported late: most starts use a local folder

    try:
        path = huggingface_hub.snapshot_download(model, revision=revision, allow_patterns=list(files))
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise UserError(f"model {model!r} can't be had from the hub: {reason}", param="model") from error
    return Path(path)


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """A JSON file of the checkpoint, or None where it has none.

    Raises:
        UserError: if the file is not a JSON object.
    """
    path = folder / name
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{name} of the checkpoint is not valid JSON: {error}", param="model") from error
    if not isinstance(value, dict):
        raise UserError(f"{name} of the checkpoint is not a JSON object.", param="model")
    return value


def read_model_config(folder: Path) -> dict[str, Any]:
    """``config.json``.

    Raises:
        UserError: if it is missing or names no ``model_type``, or a part of it is no object.
    """
    config = read_json(folder, "config.json")
    if config is None or not isinstance(config.get("model_type"), str):
        raise UserError("the checkpoint's config.json is missing or names no model_type.", param="model")
    _check_parts(config, "config.json")
    return config


def _check_parts(config: dict[str, Any], where: str) -> None:
    for name in _PARTS:
        part = config.get(name)
        if isinstance(part, dict):
            _check_parts(part, name)
        elif part is not None:
            raise UserError(
                f"{name} in the checkpoint's {where} must be an object, got {shorten(part)}.", param="model"
            )


def read_image_processor_config(folder: Path) -> dict[str, Any]:
    """Settings of the image processor: ``preprocessor_config.json``, or the part of ``processor_config.json``
    where transformers 5 keeps them; empty where the checkpoint has neither.
    """
    joined = read_json(folder, "processor_config.json") or {}
    nested = joined.get("image_processor")
    if isinstance(nested, dict):
        return nested
    return read_json(folder, "preprocessor_config.json") or {}


def read_video_processor_config(folder: Path) -> dict[str, Any]:
    """Settings of the video processor: the part of ``processor_config.json``, or ``video_preprocessor_config.json``,
    or the image processor's where the checkpoint has neither, as transformers looks for them.
    """
    joined = read_json(folder, "processor_config.json") or {}
    nested = joined.get("video_processor")
    if isinstance(nested, dict):
        return nested
    return read_json(folder, "video_preprocessor_config.json") or read_json(folder, "preprocessor_config.json") or {}


class _AddedToken(msgspec.Struct):
    id: int
    content: str


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_AddedToken] = []


def read_added_tokens(folder: Path) -> dict[str, int]:
    """Ids of the tokens that ``tokenizer.json`` has beside its vocabulary, which is not looked at, by their texts.

    Raises:
        UserError: if there is no such file, or it is none of a tokenizer.
    """
    try:
        found = msgspec.json.decode((folder / "tokenizer.json").read_bytes(), type=_TokenizerFile)
    except FileNotFoundError as error:
        raise UserError("the checkpoint has no tokenizer.json.", param="model") from error
    except msgspec.DecodeError as error:
        raise UserError(f"tokenizer.json of the checkpoint is none: {error}", param="model") from error
    return {token.content: token.id for token in found.added_tokens}


def read_tokenizer(folder: Path) -> str:
    """The text of ``tokenizer.json``; where there is only an older format, transformers converts it.

    Raises:
        UserError: if the checkpoint has none that can be read.
    """
    path = folder / "tokenizer.json"
    try:
        return path.read_text(encoding="utf-8") if path.is_file() else _convert_tokenizer(folder)
    except Exception as error:
        raise UserError(f"the checkpoint's tokenizer can't be read: {error}", param="model") from error


def read_special_texts(folder: Path) -> set[str]:
    """How the tokens are written that ``tokenizer_config.json`` names special: not every ``tokenizer.json`` does."""
    settings = read_json(folder, "tokenizer_config.json") or {}
    named = [value for name, value in settings.items() if name.endswith("_token")]
    decoder = settings.get("added_tokens_decoder")
    if isinstance(decoder, dict):
        named += [token for token in decoder.values() if isinstance(token, dict) and token.get("special")]
    return {str(value.get("content")) if isinstance(value, dict) else str(value) for value in named}


def _convert_tokenizer(folder: Path) -> str:
    from transformers import AutoTokenizer  # takes seconds to import

    tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    return str(tokenizer.backend_tokenizer.to_str())


def read_generation_config(folder: Path) -> dict[str, Any]:
    """``generation_config.json``; empty where the checkpoint has none."""
    return read_json(folder, "generation_config.json") or {}

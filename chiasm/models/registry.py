"""From a checkpoint folder to its family. A family's file is imported only when a checkpoint needs it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from chiasm.config.checkpoint import (
    read_added_tokens,
    read_generation_config,
    read_image_processor_config,
    read_model_config,
    read_video_processor_config,
)
from chiasm.errors import UserError, shorten
from chiasm.layers.patch_embedding import PixelNormalisation
from chiasm.models.entry import ModelEntry
from chiasm.schema.facts import ModelFacts

_FAMILIES = {
    "glm4v": "chiasm.models.glm4v",
    "glm4v_moe": "chiasm.models.glm4v",
    "llama4": "chiasm.models.llama4",
    "mllama": "chiasm.models.mllama",
    "qwen2_5_vl": "chiasm.models.qwen2_5_vl",
    "qwen2_vl": "chiasm.models.qwen2_vl",
    "qwen3_vl": "chiasm.models.qwen3_vl",
    "qwen3_vl_moe": "chiasm.models.qwen3_vl",
}


def find_entry(model_type: str) -> ModelEntry[Any]:
    """The family that has this ``model_type``.

    Raises:
        UserError: if none has; it lists those that there are.
    """
    if model_type not in _FAMILIES:
        raise UserError(
            f"model_type {shorten(model_type)} is not supported; supported: {', '.join(sorted(_FAMILIES))}.",
            param="model",
        )
    entry: ModelEntry[Any] = import_module(_FAMILIES[model_type]).MODEL
    return entry


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose JSON files have been read and understood; its weights have not been touched.

    Attributes:
        folder: where it is.
        entry: its family.
        config: the family's own config.
        facts: what processes without tensors need to know.
        normalisation: of pixels.
    """

    folder: Path
    entry: ModelEntry[Any]
    config: Any
    facts: ModelFacts
    normalisation: PixelNormalisation

    def check_sharding(self, text_size: int, vision_size: int) -> None:
        """Refuse numbers of ranks that the heads of the language model or the encoder can't be shared by.

        Raises:
            UserError: naming the setting and the sizes that would fit.
        """
        self.entry.check_sharding(self.config, text_size, vision_size)


def open_checkpoint(folder: Path) -> Checkpoint:
    """Read the JSON files of a checkpoint.

    Raises:
        UserError: if its family is unknown or it asks for something that can't be honoured.
    """
    raw = read_model_config(folder)
    entry = find_entry(raw["model_type"])
    if raw.get("quantization_config") is not None:
        raise UserError("the checkpoint is quantized (quantization_config), which is not supported.", param="model")
    config = entry.parse_config(raw)
    processor = read_image_processor_config(folder)
    facts = entry.facts(config, processor, read_generation_config(folder))
    normalisation = entry.normalisation(processor)
    if entry.video is not None:
        settings = read_video_processor_config(folder)
        if entry.normalisation(settings) != normalisation:  # it is part of the weights: there is one for all
            raise UserError("the checkpoint normalises videos in another way than images.", param="model")
        facts = msgspec.structs.replace(facts, video=entry.video(config, settings))
    if entry.tiles is not None:
        tiles = entry.tiles(read_added_tokens(folder))
        placed = (*facts.media_token_ids, *msgspec.structs.astuple(tiles))
        facts = msgspec.structs.replace(facts, tiles=tiles, media_token_ids=tuple(dict.fromkeys(placed)))
    return Checkpoint(folder, entry, config, facts, normalisation)

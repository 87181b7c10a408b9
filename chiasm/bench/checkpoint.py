"""The tower of a checkpoint, for the encoder's benchmark."""

from __future__ import annotations

from chiasm.config.checkpoint import read_image_processor_config, read_model_config, resolve_checkpoint
from chiasm.models.registry import find_entry
from chiasm.schema.facts import EncoderShape


def checkpoint_shape(model: str) -> EncoderShape:
    """Shapes by the checkpoint's ``config.json``; it needs neither weights nor a tokenizer.

    Args:
        model: folder or hub name.

    Raises:
        UserError: if there is none that is known.
    """
    folder = resolve_checkpoint(model)
    raw = read_model_config(folder)
    entry = find_entry(raw["model_type"])
    facts = entry.facts(entry.parse_config(raw), read_image_processor_config(folder), {})
    return facts.encoder

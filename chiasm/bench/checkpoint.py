"""The tower of a checkpoint, for the encoder's benchmark."""

from __future__ import annotations

from chiasm.config.checkpoint import resolve_checkpoint
from chiasm.models.registry import open_checkpoint
from chiasm.schema.facts import EncoderShape


def checkpoint_shape(model: str) -> EncoderShape:
    """Shapes by the checkpoint's config; its weights are not read.

    Args:
        model: folder or hub name.

    Raises:
        UserError: if there is none that is known.
    """
    return open_checkpoint(resolve_checkpoint(model)).facts.encoder

"""What the processes without tensors need to know of a loaded model."""

from __future__ import annotations

import msgspec

from chiasm.schema.media import PatchProcessorSpec


class ModelFacts(msgspec.Struct, frozen=True):
    """Facts of a checkpoint that a family's file derives from its config.

    Attributes:
        model_type: the family's name in ``config.json``.
        vocab_size: rows of the output projection; token ids are below it.
        max_position_embeddings: longest context that the model was made for, in tokens.
        eos_token_ids: tokens that end an answer.
        image_token_id: the placeholder of one image token.
        image_token: its text, as the chat template writes it once per image.
        media_token_ids: every token that only the engine may put into a prompt (placeholders and their brackets).
        processor: how images become patches.
    """

    model_type: str
    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    image_token_id: int
    image_token: str
    media_token_ids: tuple[int, ...]
    processor: PatchProcessorSpec

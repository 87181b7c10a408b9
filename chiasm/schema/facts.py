"""What the processes without tensors need to know of a loaded model."""

from __future__ import annotations

import msgspec

from chiasm.schema.media import PatchProcessorSpec


class EncoderShape(msgspec.Struct, frozen=True):
    """Shapes of a vision tower that its cost follows from.

    Attributes:
        hidden_size: width of a patch's state.
        intermediate_size: width inside the MLP.
        mlp_matrices: matrices of the MLP (3 with a gate, else 2).
        num_layers: layers in all.
        num_full_attention_layers: of these, layers whose attention spans a whole unit.
        window_patches: patches of one window in the other layers.
        num_heads: attention heads.
    """

    hidden_size: int
    intermediate_size: int
    mlp_matrices: int
    num_layers: int
    num_full_attention_layers: int
    window_patches: int
    num_heads: int


class ModelFacts(msgspec.Struct, frozen=True):
    """Facts of a checkpoint that a family's file derives from its config.

    Attributes:
        model_type: the family's name in ``config.json``.
        vocab_size: rows of the output projection; token ids are below it.
        max_position_embeddings: longest context that the model was made for, in tokens.
        eos_token_ids: tokens that end an answer.
        image_token_id: the placeholder of one image token.
        media_token_ids: every token that only the engine may put into a prompt (placeholders and their brackets).
        processor: how images become patches.
        encoder: shapes of the vision tower.
    """

    model_type: str
    vocab_size: int
    max_position_embeddings: int
    eos_token_ids: tuple[int, ...]
    image_token_id: int
    media_token_ids: tuple[int, ...]
    processor: PatchProcessorSpec
    encoder: EncoderShape

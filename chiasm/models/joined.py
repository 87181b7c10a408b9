"""What families with a tower before a decoder share: the joined model, facts about it, and names of weights.

Shapes: n rows of a packed batch, d hidden size of the language model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec
from torch import Tensor, nn

from chiasm.errors import UserError
from chiasm.layers.embedding import OutputProjection, VocabEmbedding
from chiasm.layers.patch_embedding import PatchEmbedding
from chiasm.layers.shards import HeadShard, check_text_heads, check_vision_heads
from chiasm.models.blocks import eos_token_ids, grid_rope_positions, known_token_ids, name_on_disk, require_positive
from chiasm.models.entry import BuildContext, DeepFeatures, RopePositions, SeenUnits
from chiasm.models.weight_tying import WeightTying, settle_weight_tying
from chiasm.ops.paged_attention import KVCache, PagedBatch
from chiasm.ops.segments import SharedRows
from chiasm.schema.facts import EncoderShape, ModelFacts
from chiasm.schema.media import ImageProcessorSpec, MediaItem, PatchLayout, PatchProcessorSpec
from chiasm.vision.stages import Stages
from chiasm.vision.tables import TableTower, encode
from chiasm.vision.units import Piece

_TOWER_SIZES = (
    "depth", "hidden_size", "num_heads", "patch_size", "spatial_merge_size", "temporal_patch_size", "out_hidden_size"
)  # fmt: skip
TEXT_SIZES = (
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
    "num_key_value_heads", "head_dim", "max_position_embeddings"
)  # fmt: skip
"""Sizes of every language model with one kind of MLP, for ``blocks.require_positive``."""


class TowerConfig(msgspec.Struct, frozen=True):
    """What every tower's config has; families have defaults of their own."""

    depth: int = 32
    hidden_size: int = 3584
    num_heads: int = 16
    in_channels: int = 3
    patch_size: int = 14
    spatial_merge_size: int = 2
    temporal_patch_size: int = 2
    out_hidden_size: int = 3584
    rope_parameters: dict[str, Any] = {}

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.hidden_size // self.num_heads

    @property
    def block_rows(self) -> int:
        """Patches in a merge block."""
        return self.spatial_merge_size**2

    @property
    def patch_bytes(self) -> int:
        """Bytes of a flattened patch."""
        return self.in_channels * self.temporal_patch_size * self.patch_size**2

    @property
    def layout(self) -> PatchLayout:
        """What a row of pixels is."""
        return PatchLayout(self.patch_size, self.spatial_merge_size, self.temporal_patch_size)

    def patches(self, *, min_pixels: int, max_pixels: int, enlarges_thin: bool = False) -> PatchProcessorSpec:
        """How pictures become patches, between these limits of their area."""
        return PatchProcessorSpec(
            patch_size=self.patch_size,
            merge_size=self.spatial_merge_size,
            temporal_patch_size=self.temporal_patch_size,
            min_pixels=min_pixels,
            max_pixels=max_pixels,
            enlarges_thin=enlarges_thin,
        )


class TextSizes(Protocol):
    """What every language model's config has."""

    @property
    def vocab_size(self) -> int:
        """Tokens."""

    @property
    def hidden_size(self) -> int:
        """Width d."""

    @property
    def num_hidden_layers(self) -> int:
        """Layers."""

    @property
    def num_attention_heads(self) -> int:
        """Query heads."""

    @property
    def num_key_value_heads(self) -> int:
        """Key-value heads."""

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""

    @property
    def max_position_embeddings(self) -> int:
        """Longest context in tokens."""

    @property
    def eos_token_id(self) -> int | tuple[int, ...]:
        """What ends an answer, if the generation config does not tell."""


class JoinedTokens(Protocol):
    """What every config of a whole model has."""

    @property
    def image_token_id(self) -> int:
        """The placeholder of an image token."""


class WholeConfig(Protocol):
    """All of a ``config.json``, in its parts."""

    @property
    def vision(self) -> TowerConfig:
        """The tower."""

    @property
    def text(self) -> TextSizes:
        """The language model."""

    @property
    def joined(self) -> JoinedTokens:
        """What joins them."""


class JoinableConfig(WholeConfig, Protocol):
    """That of a model whose input and output embeddings may be one."""

    @property
    def tying(self) -> WeightTying:
        """Whether they are."""


class EncoderTower(TableTower, Protocol):
    """A family's tower: uint8 [patches, bytes of a patch] -> [tokens, feature size]."""

    patch_embed: PatchEmbedding


class TextModel(Protocol):
    """A family's language model; see ``VisionLanguageModel.forward``."""

    embed_tokens: VocabEmbedding
    heads: HeadShard

    def __call__(
        self,
        embeds: Tensor,
        positions: Tensor,
        caches: Sequence[KVCache],
        batch: PagedBatch,
        deep: DeepFeatures | None,
        rows: Tensor | None,
    ) -> Tensor:
        """[n, d] and LongTensor [3, n] -> [n, d], or [m, d] of ``rows``."""


class JoinedModel(nn.Module):
    """A tower, and a language model with positions in time, height and width; see ``VisionLanguageModel``.

    ``positions_per_second`` is as ``grid_rope_positions`` has it.
    """

    def __init__(
        self,
        config: JoinableConfig,
        tower: EncoderTower,
        language_model: TextModel,
        context: BuildContext,
        positions_per_second: float | None = None,
    ) -> None:
        super().__init__()
        text = config.text
        self.tying = config.tying
        self.merge_size = config.vision.spatial_merge_size
        self.positions_per_second = positions_per_second
        self.num_layers = text.num_hidden_layers
        self.head_dim = text.head_dim
        self.hidden_size = text.hidden_size
        self.visual = tower
        self.language_model = language_model
        self.num_heads = language_model.heads.num_heads
        self.num_kv_heads = language_model.heads.num_kv_heads
        self.chunk_sizes: tuple[int | None, ...] = (None,)
        tied = language_model.embed_tokens if config.tying.is_tied(context.tensor_names) else None
        self.lm_head = OutputProjection(text.vocab_size, text.hidden_size, context.text, tied)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """LongTensor [n] -> [n, d]."""
        rows: Tensor = self.language_model.embed_tokens(ids)
        return rows

    def encode_vision(self, pixels: Tensor, pieces: Sequence[Piece], shared: SharedRows | None = None) -> Stages:
        """uint8 [patches, bytes of a patch] -> [tokens, feature size]."""
        return encode(self.visual, pixels, pieces, shared)

    def table_tower(self) -> TableTower:
        """The tower."""
        return self.visual

    def keep(self, features: Tensor) -> Tensor:
        """The features themselves."""
        return features

    def forward(
        self,
        embeds: Tensor,
        positions: Tensor,
        caches: Sequence[KVCache],
        batch: PagedBatch,
        deep: DeepFeatures | None = None,
        seen: Sequence[SeenUnits] = (),
        rows: Tensor | None = None,
    ) -> Tensor:
        """[n, d] and LongTensor [3, n] -> [n, d], or [m, d] of ``rows``."""
        assert not seen, "features take the place of tokens"
        return self.language_model(embeds, positions, caches, batch, deep, rows)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[m, d] -> float32 [m, vocabulary]."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def rope_positions(self, num_tokens: int, items: Sequence[MediaItem]) -> RopePositions:
        """Positions of a prompt in time, height and width."""
        return grid_rope_positions(num_tokens, items, self.merge_size, self.positions_per_second)

    def finish_loading(self) -> None:
        """Fold the normalisation of pixels into the patch embedding; keep tied embeddings once."""
        self.visual.patch_embed.fold_normalisation()
        settle_weight_tying(self.tying, self.lm_head, self.language_model.embed_tokens)


def joined_facts(
    model_type: str,
    config: WholeConfig,
    generation: dict[str, Any],
    *,
    media_token_ids: Sequence[int],
    processor: ImageProcessorSpec,
    encoder: EncoderShape,
) -> ModelFacts:
    """Facts for the processes without tensors.

    Args:
        model_type: the family's name in ``config.json``.
        config: of the checkpoint.
        generation: its generation config.
        media_token_ids: every token that only the engine may place.
        processor: how images become patches.
        encoder: shapes of the tower.
    """
    text = config.text
    return ModelFacts(
        model_type=model_type,
        vocab_size=text.vocab_size,
        max_position_embeddings=text.max_position_embeddings,
        eos_token_ids=known_token_ids(eos_token_ids(generation, text.eos_token_id), text.vocab_size),
        image_token_id=config.joined.image_token_id,
        media_token_ids=known_token_ids(media_token_ids, text.vocab_size),
        processor=processor,
        encoder=encoder,
    )


def check_tower(vision: TowerConfig, *own_sizes: str) -> None:
    """Refuse a tower whose sizes can't be: those that all have, and ``own_sizes``.

    Raises:
        UserError: naming them.
    """
    require_positive("vision_config", vision, (*_TOWER_SIZES, *own_sizes))
    if vision.hidden_size % (4 * vision.num_heads):
        width = f"{name_on_disk(vision, 'hidden_size')}={vision.hidden_size}"
        raise UserError(
            f"{width} of the checkpoint's vision_config does not divide into num_heads={vision.num_heads} heads "
            "whose sizes are multiples of 4.",
            param="model",
        )


def check_sharding(config: WholeConfig, text_size: int, vision_size: int) -> None:
    """Refuse numbers of ranks that the heads do not divide by."""
    check_text_heads(config.text.num_attention_heads, config.text.num_key_value_heads, text_size)
    check_vision_heads(config.vision.num_heads, vision_size)


def substituted(name: str, renames: Sequence[tuple[str, str]]) -> str:
    """A name after patterns have been replaced by what takes their place, in order."""
    for pattern, replacement in renames:
        name = re.sub(pattern, replacement, name)
    return name

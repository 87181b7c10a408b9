"""What Qwen2-VL and Qwen2.5-VL share: Qwen2 with positions in time, height and width, and all around a tower.

Their files say what their towers' layers are. Shapes: n rows of a packed batch (patches in the tower, tokens in the
language model), d hidden size, D head size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from torch import Tensor, nn

from chiasm.layers.decoder import DecoderLayer, DecoderShape
from chiasm.layers.embedding import VocabEmbedding
from chiasm.layers.encoder import EncoderLayer, NormKind
from chiasm.layers.mlp import PlainMLP
from chiasm.layers.norm import RMSNorm
from chiasm.layers.patch_embedding import PatchEmbedding
from chiasm.layers.shards import split_heads
from chiasm.layers.weight import Placement
from chiasm.models.blocks import (
    piece_positions,
    read_config,
    read_patch_processor,
    read_video_processor,
    require_multiple,
    require_positive,
    require_sections,
    require_setting,
    unit_segments,
)
from chiasm.models.entry import BuildContext, DeepFeatures
from chiasm.models.joined import TEXT_SIZES, TowerConfig, check_tower, joined_facts, substituted
from chiasm.models.weight_tying import WeightTying, read_weight_tying
from chiasm.ops.paged_attention import KVCache, PagedBatch
from chiasm.ops.rope import grid_rotation, inverse_frequencies, multimodal_rotation
from chiasm.ops.segments import Segments, SharedRows
from chiasm.schema.facts import EncoderShape, ModelFacts, VideoFacts
from chiasm.schema.media import VideoProcessorSpec
from chiasm.vision.stages import Stages
from chiasm.vision.tables import PassTables
from chiasm.vision.units import Piece

# --------------------------------------------------------------------------------------------------------------------
# Config. Names and defaults are those of config.json and of transformers.


class TextConfig(msgspec.Struct, frozen=True):
    """The language model; rope_theta and mrope_section are found in more than one place and put here."""

    rope_theta: float
    mrope_section: tuple[int, int, int]
    vocab_size: int = 152064
    hidden_size: int = 8192
    intermediate_size: int = 29568
    num_hidden_layers: int = 80
    num_attention_heads: int = 64
    num_key_value_heads: int = 8
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-5
    use_sliding_window: bool = False
    layer_types: tuple[str, ...] = ()
    eos_token_id: int | tuple[int, ...] = 151645

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.hidden_size // self.num_attention_heads


class JoinedConfig(msgspec.Struct, frozen=True):
    """Tokens that bracket and stand for media."""

    image_token_id: int = 151655
    video_token_id: int = 151656
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653
    vision_token_id: int = 151654


TowerConfigT = TypeVar("TowerConfigT", bound=TowerConfig)


@dataclass(frozen=True)
class Config(Generic[TowerConfigT]):
    """All of ``config.json`` that the model reads."""

    vision: TowerConfigT
    text: TextConfig
    joined: JoinedConfig
    tying: WeightTying


def read_whole_config(raw: dict[str, Any], tower: type[TowerConfigT]) -> Config[TowerConfigT]:
    """Read the flat form, with the language model's keys at the top, or the nested one with a ``text_config``.

    Raises:
        UserError: for values that are not supported or contradict each other.
    """
    text = raw.get("text_config") or raw
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    placed = {
        "rope_theta": rope.get("rope_theta") or text.get("rope_theta") or 1e6,
        "mrope_section": rope.get("mrope_section") or (16, 24, 24),
    }
    # Null means a key-value head for each query head.
    heads = {"num_key_value_heads": text.get("num_key_value_heads", 8) or text.get("num_attention_heads")}
    config = Config(
        vision=read_config(raw.get("vision_config") or {}, tower, "vision_config"),
        text=read_config({**text, **placed, **heads}, TextConfig, "text_config"),
        joined=read_config(raw, JoinedConfig, "config.json"),
        tying=read_weight_tying(raw),
    )
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    require_setting("text config", "rope_type", rope_type, ["default", "mrope"])
    _check_tower(config.vision)
    _check_text(config.text)
    return config


def _check_tower(vision: TowerConfig) -> None:
    require_setting("vision_config", "in_channels", vision.in_channels, [3])
    check_tower(vision, "intermediate_size")


def _check_text(text: TextConfig) -> None:
    require_setting("text config", "hidden_act", text.hidden_act, ["silu"])
    require_setting("text config", "use_sliding_window", text.use_sliding_window, [False])
    for layer_type in text.layer_types:
        require_setting("text config", "layer_types", layer_type, ["full_attention"])
    require_positive("text config", text, TEXT_SIZES)
    require_multiple("text config", text, "hidden_size", "num_attention_heads")
    require_multiple("text config", text, "num_attention_heads", "num_key_value_heads")
    require_sections(text.mrope_section, text.head_dim)


# --------------------------------------------------------------------------------------------------------------------
# Tower


class _Merger(PlainMLP):
    """Joins the patches of a merge block into one feature row of the language model."""

    def __init__(self, config: TowerConfig, norm: NormKind, placement: Placement) -> None:
        block_size = config.hidden_size * config.block_rows
        super().__init__(block_size, block_size, config.out_hidden_size, "gelu", placement)
        self.block_size = block_size
        self.ln_q = norm(config.hidden_size, 1e-6, placement)

    def forward(self, x: Tensor) -> Tensor:
        """[n, d] -> [blocks, feature size]."""
        return super().forward(self.ln_q(x).view(-1, self.block_size))


class Tower(nn.Module):
    """Encodes packed units. It knows nothing of ranks beyond the group of its placement.

    Args:
        config: its sizes.
        context: what the model is built with.
        norm: the kind of all its norms.
        make_mlp: makes a layer's feed-forward part.
        window_blocks: side in merge blocks of the windows in whose order patches are; 0 if there are none.
    """

    def __init__(
        self,
        config: TowerConfig,
        context: BuildContext,
        norm: NormKind,
        make_mlp: Callable[[], nn.Module],
        window_blocks: int = 0,
    ) -> None:
        super().__init__()
        placement = context.vision
        self.merge_size = config.spatial_merge_size
        self.window_blocks = window_blocks
        theta = config.rope_parameters.get("rope_theta", 10000.0)
        self.frequencies = inverse_frequencies(config.head_dim // 2, theta, placement.device)
        kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
        source_shape = (config.hidden_size, config.in_channels, *kernel)
        self.patch_embed = PatchEmbedding(source_shape, context.normalisation, placement)
        heads = split_heads(config.num_heads, config.num_heads, config.head_dim, placement.group)
        self.blocks = nn.ModuleList(
            EncoderLayer(config.hidden_size, heads, norm, make_mlp(), placement) for _ in range(config.depth)
        )
        self.merger = _Merger(config, norm, placement)

    def tables(self, pieces: Sequence[Piece], shared: SharedRows | None) -> PassTables:
        """Positions [n, 2], and whole units."""
        positions = piece_positions(pieces, self.merge_size, self.window_blocks)
        return PassTables((positions,), (unit_segments(pieces, shared),))

    def stages(self, pixels: Tensor, rows: Sequence[Tensor], segments: Sequence[Segments]) -> Stages:
        """uint8 [n, bytes of a patch] -> [n / 4, feature size]; see ``TableTower``."""
        [positions] = rows
        x = self.patch_embed(pixels)
        rotation = grid_rotation(positions, self.frequencies)
        for index, block in enumerate(self.blocks):
            x = block(x, rotation, self.layer_segments(index, segments))
            yield
        features: Tensor = self.merger(x)
        return features

    def layer_segments(self, layer: int, segments: Sequence[Segments]) -> Segments:  # noqa: ARG002
        """Within what a layer's rows attend; here that is a whole unit everywhere."""
        return segments[0]


# --------------------------------------------------------------------------------------------------------------------
# Language model


class TextModel(nn.Module):
    """Qwen2, with rotary positions in time, height and width."""

    def __init__(self, config: TextConfig, placement: Placement) -> None:
        super().__init__()
        self.mrope_section = config.mrope_section
        self.frequencies = inverse_frequencies(config.head_dim, config.rope_theta, placement.device)
        self.heads = split_heads(
            config.num_attention_heads, config.num_key_value_heads, config.head_dim, placement.group
        )
        shape = DecoderShape(
            config.hidden_size, config.intermediate_size, self.heads, config.rms_norm_eps, qkv_bias=True
        )
        self.embed_tokens = VocabEmbedding(config.vocab_size, config.hidden_size, placement)
        self.layers = nn.ModuleList(DecoderLayer(shape, placement) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, placement)

    def forward(
        self,
        embeds: Tensor,
        positions: Tensor,
        caches: Sequence[KVCache],
        batch: PagedBatch,
        deep: DeepFeatures | None,
        rows: Tensor | None,
    ) -> Tensor:
        """[n, d] and LongTensor [3, n] -> [n, d], or [m, d] of ``rows``."""
        assert deep is None
        rotation = multimodal_rotation(positions, self.frequencies, self.mrope_section).to(embeds.dtype)
        x = embeds
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, rotation, cache, batch, rows if layer is self.layers[-1] else None)
        normed: Tensor = self.norm(x)
        return normed


# --------------------------------------------------------------------------------------------------------------------
# Processor, names of weights


def make_facts(
    model_type: str,
    config: Config[Any],
    processor: dict[str, Any],
    generation: dict[str, Any],
    encoder: EncoderShape,
) -> ModelFacts:
    """Facts for the processes without tensors."""
    tokens = config.joined
    patches = config.vision.patches(min_pixels=56 * 56, max_pixels=28 * 28 * 1280)
    return joined_facts(
        model_type,
        config,
        generation,
        media_token_ids=(
            tokens.vision_start_token_id,
            tokens.vision_end_token_id,
            tokens.vision_token_id,
            tokens.image_token_id,
            tokens.video_token_id,
        ),
        processor=read_patch_processor(processor, patches),
        encoder=encoder,
    )


def read_video(config: Config[Any], settings: dict[str, Any]) -> VideoFacts:
    """How videos are taken: one run of placeholders."""
    patches = config.vision.patches(min_pixels=128 * 28 * 28, max_pixels=28 * 28 * 768)
    return VideoFacts(config.joined.video_token_id, read_video_processor(settings, VideoProcessorSpec(patches)))


def encoder_shape(vision: TowerConfig, intermediate_size: int, mlp_matrices: int) -> EncoderShape:
    """That of a tower with full attention in every layer."""
    merged = vision.hidden_size * vision.block_rows
    return EncoderShape(
        hidden_size=vision.hidden_size,
        intermediate_size=intermediate_size,
        mlp_matrices=mlp_matrices,
        num_layers=vision.depth,
        full_attention_layers=tuple(range(vision.depth)),
        num_heads=vision.num_heads,
        feature_size=vision.out_hidden_size,
        merge_size=vision.spatial_merge_size,
        outer_flops=2 * vision.hidden_size * (vision.patch_bytes + merged + vision.out_hidden_size),
    )


# The hub's checkpoints have "visual." and "model."; transformers 5 puts both below "model.".
_RENAMES = (
    (r"^model\.visual\.", "visual."),
    (r"^model\.(?:language_model\.)?", "language_model."),
    (r"^visual\.patch_embed\.proj\.", "visual.patch_embed."),
    (r"^visual\.merger\.mlp\.0\.", "visual.merger.fc1."),
    (r"^visual\.merger\.mlp\.2\.", "visual.merger.fc2."),
)


def module_name(name: str, config: Config[Any]) -> str:
    """Name of a weight for a checkpoint tensor."""
    del config
    return substituted(name, _RENAMES)

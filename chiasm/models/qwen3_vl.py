"""Qwen3-VL, dense and with experts: a tower whose early layers speak to the language model too, and Qwen3.

Shapes: n rows of a packed batch (patches in the tower, tokens in the language model), d hidden size, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chiasm.errors import UserError
from chiasm.layers.decoder import DecoderLayer, DecoderShape
from chiasm.layers.embedding import VocabEmbedding
from chiasm.layers.encoder import EncoderLayer
from chiasm.layers.mlp import PlainMLP
from chiasm.layers.moe import ExpertLayout, Experts, MixtureOfExperts, SoftmaxRouter
from chiasm.layers.norm import LayerNorm, RMSNorm
from chiasm.layers.patch_embedding import PatchEmbedding, PixelNormalisation
from chiasm.layers.shards import split_heads
from chiasm.layers.weight import Part, Placement, Weight
from chiasm.models.blocks import (
    IntArray,
    block_positions,
    piece_positions,
    read_centred_normalisation,
    read_config,
    read_patch_processor,
    read_video_processor,
    require_multiple,
    require_positive,
    require_sections,
    require_setting,
    unit_segments,
)
from chiasm.models.entry import BuildContext, DeepFeatures, ModelEntry
from chiasm.models.joined import (
    TEXT_SIZES,
    JoinedModel,
    TowerConfig,
    check_sharding,
    check_tower,
    joined_facts,
    substituted,
)
from chiasm.models.weight_tying import WeightTying, read_weight_tying
from chiasm.ops.paged_attention import KVCache, PagedBatch
from chiasm.ops.rope import grid_rotation, interleaved_rotation, inverse_frequencies
from chiasm.ops.segments import Segments, SharedRows
from chiasm.schema.facts import EncoderShape, ModelFacts, SliceForm, VideoFacts
from chiasm.schema.media import VideoProcessorSpec
from chiasm.vision.stages import Stages
from chiasm.vision.tables import PassTables
from chiasm.vision.units import Piece

# --------------------------------------------------------------------------------------------------------------------
# Config. Names and defaults are those of config.json and of transformers.


class VisionConfig(TowerConfig, frozen=True):
    """The tower."""

    depth: int = 27
    hidden_size: int = 1152
    hidden_act: str = "gelu_pytorch_tanh"
    intermediate_size: int = 4304
    patch_size: int = 16
    num_position_embeddings: int = 2304
    deepstack_visual_indexes: tuple[int, ...] = (8, 16, 24)

    @property
    def table_side(self) -> int:
        """Side of the square table of position embeddings."""
        return math.isqrt(self.num_position_embeddings)

    @property
    def feature_size(self) -> int:
        """Columns of a feature row: the token's own, then those for the early layers of the language model."""
        return self.out_hidden_size * (1 + len(self.deepstack_visual_indexes))


class TextConfig(msgspec.Struct, frozen=True):
    """The language model; rope_theta and mrope_section are found in more than one place and put here."""

    rope_theta: float
    mrope_section: tuple[int, int, int]
    vocab_size: int = 151936
    hidden_size: int = 4096
    intermediate_size: int = 22016
    num_hidden_layers: int = 32
    num_attention_heads: int = 32
    num_key_value_heads: int = 32
    head_dim: int = 128
    hidden_act: str = "silu"
    max_position_embeddings: int = 128000
    rms_norm_eps: float = 1e-6
    attention_bias: bool = False
    eos_token_id: int | tuple[int, ...] = 151645


class MoeTextConfig(TextConfig, frozen=True):
    """The language model with experts."""

    hidden_size: int = 2048
    intermediate_size: int = 5632
    num_hidden_layers: int = 24
    num_attention_heads: int = 16
    num_key_value_heads: int = 16
    decoder_sparse_step: int = 1
    mlp_only_layers: tuple[int, ...] = ()
    moe_intermediate_size: int = 1408
    num_experts: int = 60
    num_experts_per_tok: int = 4
    norm_topk_prob: bool = True

    def has_experts(self, layer: int) -> bool:
        """Whether a layer has experts rather than one MLP."""
        return layer not in self.mlp_only_layers and (layer + 1) % self.decoder_sparse_step == 0


class JoinedConfig(msgspec.Struct, frozen=True):
    """Tokens that bracket and stand for media."""

    image_token_id: int = 151655
    video_token_id: int = 151656
    vision_start_token_id: int = 151652
    vision_end_token_id: int = 151653


@dataclass(frozen=True)
class Config:
    """All of ``config.json`` that the model reads."""

    model_type: str
    vision: VisionConfig
    text: TextConfig
    joined: JoinedConfig
    tying: WeightTying
    expert_layout: ExpertLayout


def parse_config(raw: dict[str, Any]) -> Config:
    """Read the config of a dense model or one with experts.

    Raises:
        UserError: for values that are not supported or contradict each other.
    """
    text = raw.get("text_config") or {}
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    config = Config(
        model_type=raw["model_type"],
        vision=read_config(raw.get("vision_config") or {}, VisionConfig, "vision_config"),
        text=_read_text(text, rope, has_experts=raw["model_type"] == "qwen3_vl_moe"),
        joined=read_config(raw, JoinedConfig, "config.json"),
        tying=read_weight_tying(raw),
        expert_layout=_expert_layout(raw),
    )
    require_setting("text config", "rope_type", rope.get("rope_type") or rope.get("type") or "default", ["default"])
    require_setting("text config", "mrope_interleaved", rope.get("mrope_interleaved", True), [True])
    _check_vision(config.vision, config.text)
    _check_text(config.text)
    return config


def _read_text(text: dict[str, Any], rope: dict[str, Any], *, has_experts: bool) -> TextConfig:
    placed = {
        "rope_theta": rope.get("rope_theta") or text.get("rope_theta") or 5e5,
        "mrope_section": rope.get("mrope_section") or (24, 20, 20),
    }
    if "num_key_value_heads" in text:  # null means a key-value head for each query head
        placed["num_key_value_heads"] = text["num_key_value_heads"] or text.get("num_attention_heads")
    if not has_experts:
        return read_config({**text, **placed}, TextConfig, "text_config")
    placed["num_experts"] = text.get("num_experts") or text.get("num_local_experts")
    config = read_config({**text, **placed}, MoeTextConfig, "text_config")
    if text.get("head_dim") is None:
        config = msgspec.structs.replace(config, head_dim=config.hidden_size // config.num_attention_heads)
    return config


def _expert_layout(raw: dict[str, Any]) -> ExpertLayout:
    """The layouts have the same names; transformers 5 writes its own, which the published checkpoints precede.

    If the version is wrong, a shape is wrong too: not both matrices can be square.
    """
    major = str(raw.get("transformers_version") or "").partition(".")[0]
    return "out_in" if major.isdecimal() and int(major) >= 5 else "in_out"


def _check_vision(vision: VisionConfig, text: TextConfig) -> None:
    where = "vision_config"
    require_setting(where, "hidden_act", vision.hidden_act, ["gelu_pytorch_tanh"])
    require_setting(where, "in_channels", vision.in_channels, [3])
    require_setting(where, "out_hidden_size", vision.out_hidden_size, [text.hidden_size])
    check_tower(vision, "intermediate_size", "num_position_embeddings")
    require_setting(where, "num_position_embeddings", vision.num_position_embeddings, [vision.table_side**2])
    indexes = list(vision.deepstack_visual_indexes)
    require_setting(where, "deepstack_visual_indexes", indexes, [sorted(set(indexes) & set(range(vision.depth)))])
    if len(indexes) >= text.num_hidden_layers:
        raise UserError(
            f"deepstack_visual_indexes of the checkpoint's vision_config has {len(indexes)} entries; "
            f"num_hidden_layers={text.num_hidden_layers} of its text config allows at most "
            f"{text.num_hidden_layers - 1}.",
            param="model",
        )


_EXPERT_SIZES = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step")


def _check_text(text: TextConfig) -> None:
    require_setting("text config", "hidden_act", text.hidden_act, ["silu"])
    require_setting("text config", "attention_bias", text.attention_bias, [False])
    require_positive("text config", text, TEXT_SIZES)
    if isinstance(text, MoeTextConfig):
        require_setting("text config", "norm_topk_prob", text.norm_topk_prob, [True])
        require_positive("text config", text, _EXPERT_SIZES)
        if text.num_experts < text.num_experts_per_tok:
            raise UserError(
                f"num_experts_per_tok={text.num_experts_per_tok} of the checkpoint's config is more than its "
                f"num_experts={text.num_experts}.",
                param="model",
            )
    require_multiple("text config", text, "num_attention_heads", "num_key_value_heads")
    require_sections(text.mrope_section, text.head_dim)


# --------------------------------------------------------------------------------------------------------------------
# Tower


class _TablePlaces(NamedTuple):
    """Where patches lie in a table of embeddings: the four entries around each, and their shares; each [n, 4]."""

    entries: IntArray
    shares: npt.NDArray[np.float64]


@lru_cache(maxsize=64)
def _table_places(grid: tuple[int, int], merge_size: int, side: int) -> _TablePlaces:
    """Places of a unit's patches, in cut order; the corners of the grid lie on those of the table."""
    spacing = (side - 1) / np.maximum(np.array(grid) - 1, 1)
    places = block_positions(grid, merge_size) * spacing  # [n, 2]
    low = np.floor(places).astype(np.int64)
    around = np.stack([low, np.minimum(low + 1, side - 1)], axis=1)  # [n, 2 (low, high), 2 (row, column)]
    shares = np.stack([1 - (places - low), places - low], axis=1)
    entries = around[:, :, None, 0] * side + around[:, None, :, 1]
    return _TablePlaces(entries.reshape(-1, 4), (shares[:, :, None, 0] * shares[:, None, :, 1]).reshape(-1, 4))


class _PositionEmbedding(nn.Module):
    """A square table of embeddings, stretched over a unit's grid by bilinear interpolation; never sharded."""

    def __init__(self, config: VisionConfig, placement: Placement) -> None:
        super().__init__()
        self.merge_size = config.spatial_merge_size
        self.side = config.table_side
        shape = (config.num_position_embeddings, config.hidden_size)
        # float32 at least, so that what is interpolated is rounded only once.
        wide = torch.promote_types(placement.dtype, torch.float32)
        self.weight = Weight(shape, {"": Part.whole(*shape)}, wide, placement.device)

    def places(self, pieces: Sequence[Piece]) -> _TablePlaces:
        """Where the patches of packed pieces lie in the table."""
        parts = [_table_places(piece.grid, self.merge_size, self.side) for piece in pieces]
        rows = [slice(piece.start, piece.stop) for piece in pieces]
        entries = [part.entries[own] for part, own in zip(parts, rows, strict=True)]
        shares = [part.shares[own] for part, own in zip(parts, rows, strict=True)]
        return _TablePlaces(
            np.concatenate([np.empty((0, 4), np.int64), *entries]), np.concatenate([np.empty((0, 4)), *shares])
        )

    def forward(self, entries: Tensor, shares: Tensor) -> Tensor:
        """LongTensor [n, 4] and float64 [n, 4] -> [n, d]."""
        return F.embedding_bag(entries, self.weight, mode="sum", per_sample_weights=shares.to(self.weight.dtype))


def _make_mlp(config: VisionConfig, placement: Placement) -> PlainMLP:
    return PlainMLP(config.hidden_size, config.intermediate_size, config.hidden_size, "gelu_tanh", placement)


class _Merger(nn.Module):
    """Joins the patches of a merge block into one row; ``norm_size`` is that of a patch or that of a block."""

    def __init__(self, config: VisionConfig, norm_size: int, placement: Placement) -> None:
        super().__init__()
        self.norm_size = norm_size
        self.block_size = config.hidden_size * config.block_rows
        self.norm = LayerNorm(norm_size, 1e-6, placement)
        self.mlp = PlainMLP(self.block_size, self.block_size, config.out_hidden_size, "gelu", placement)

    def forward(self, x: Tensor) -> Tensor:
        """[n, d] -> [blocks, hidden size of the language model]."""
        out: Tensor = self.mlp(self.norm(x.view(-1, self.norm_size)).view(-1, self.block_size))
        return out


class Tower(nn.Module):
    """Encodes packed units. It knows nothing of ranks beyond the group of its placement."""

    def __init__(self, config: VisionConfig, normalisation: PixelNormalisation, placement: Placement) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        theta = config.rope_parameters.get("rope_theta") or 10000.0
        self.frequencies = inverse_frequencies(config.head_dim // 2, theta, placement.device)
        kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
        self.patch_embed = PatchEmbedding((size, config.in_channels, *kernel), normalisation, placement, bias=True)
        self.pos_embed = _PositionEmbedding(config, placement)
        heads = split_heads(config.num_heads, config.num_heads, config.head_dim, placement.group)
        self.blocks = nn.ModuleList(
            EncoderLayer(size, heads, LayerNorm, _make_mlp(config, placement), placement) for _ in range(config.depth)
        )
        self.merger = _Merger(config, size, placement)
        self.deepstack_merger_list = nn.ModuleList(
            _Merger(config, size * config.block_rows, placement) for _ in config.deepstack_visual_indexes
        )

    def tables(self, pieces: Sequence[Piece], shared: SharedRows | None) -> PassTables:
        """Positions [n, 2], entries of the table of embeddings and their shares [n, 4], and whole units."""
        positions = piece_positions(pieces, self.config.spatial_merge_size)
        places = self.pos_embed.places(pieces)
        return PassTables((positions, places.entries, places.shares), (unit_segments(pieces, shared),))

    def stages(self, pixels: Tensor, rows: Sequence[Tensor], segments: Sequence[Segments]) -> Stages:
        """uint8 [n, bytes of a patch] -> [n / 4, feature size]; see ``TableTower``."""
        config = self.config
        (positions, entries, shares), [units] = rows, segments
        x: Tensor = self.patch_embed(pixels)
        x = x + self.pos_embed(entries, shares).to(x.dtype)
        rotation = grid_rotation(positions, self.frequencies)
        features = x.new_empty(x.shape[0] // config.block_rows, config.feature_size)
        own, *deep = features.split(config.out_hidden_size, dim=1)
        pairs = zip(self.deepstack_merger_list, deep, strict=True)
        places = dict(zip(config.deepstack_visual_indexes, pairs, strict=True))
        for index, block in enumerate(self.blocks):
            x = block(x, rotation, units)
            if index in places:
                merger, columns = places[index]
                columns.copy_(merger(x))
            yield
        own.copy_(self.merger(x))
        return features


# --------------------------------------------------------------------------------------------------------------------
# Language model


class TextModel(nn.Module):
    """Qwen3, with rotary positions in time, height and width, and features that join in behind its first layers."""

    def __init__(self, config: TextConfig, expert_layout: ExpertLayout, placement: Placement) -> None:
        super().__init__()
        self.mrope_section = config.mrope_section
        self.frequencies = inverse_frequencies(config.head_dim, config.rope_theta, placement.device)
        self.heads = split_heads(
            config.num_attention_heads, config.num_key_value_heads, config.head_dim, placement.group
        )
        shape = DecoderShape(
            config.hidden_size,
            config.intermediate_size,
            self.heads,
            config.rms_norm_eps,
            qkv_bias=False,
            qk_norm=True,
        )
        self.embed_tokens = VocabEmbedding(config.vocab_size, config.hidden_size, placement)
        self.layers = nn.ModuleList(
            DecoderLayer(shape, placement, _build_experts(config, layer, expert_layout, placement))
            for layer in range(config.num_hidden_layers)
        )
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
        rotation = interleaved_rotation(positions, self.frequencies, self.mrope_section).to(embeds.dtype)
        added = () if deep is None else deep.columns.split(embeds.shape[1], dim=1)
        x = embeds
        for index, (layer, cache) in enumerate(zip(self.layers, caches, strict=True)):
            x = layer(x, rotation, cache, batch, rows if layer is self.layers[-1] else None)
            if deep is not None and index < len(added):
                x.index_add_(0, deep.rows, added[index])
        normed: Tensor = self.norm(x)
        return normed


def _build_experts(
    config: TextConfig, layer: int, layout: ExpertLayout, placement: Placement
) -> MixtureOfExperts | None:
    if not isinstance(config, MoeTextConfig) or not config.has_experts(layer):
        return None
    size, num_experts = config.hidden_size, config.num_experts
    return MixtureOfExperts(
        SoftmaxRouter(size, num_experts, config.num_experts_per_tok, placement),
        Experts(size, config.moe_intermediate_size, num_experts, layout, placement),
    )


# --------------------------------------------------------------------------------------------------------------------
# Joined model


def build(config: Config, context: BuildContext) -> JoinedModel:
    """The unfilled model of one rank."""
    tower = Tower(config.vision, context.normalisation, context.vision)
    text = TextModel(config.text, config.expert_layout, context.text)
    return JoinedModel(config, tower, text, context)


# --------------------------------------------------------------------------------------------------------------------
# Processor, names of weights, entry


def read_facts(config: Config, processor: dict[str, Any], generation: dict[str, Any]) -> ModelFacts:
    """Facts for the processes without tensors."""
    tokens = config.joined
    patches = config.vision.patches(min_pixels=56 * 56, max_pixels=28 * 28 * 1280)
    return joined_facts(
        config.model_type,
        config,
        generation,
        media_token_ids=(
            tokens.vision_start_token_id,
            tokens.vision_end_token_id,
            tokens.image_token_id,
            tokens.video_token_id,
        ),
        processor=read_patch_processor(processor, patches),
        encoder=_encoder_shape(config.vision),
    )


def read_video(config: Config, settings: dict[str, Any]) -> VideoFacts:
    """How videos are taken: each slice apart, behind its time."""
    tokens = config.joined
    patches = config.vision.patches(min_pixels=128 * 32 * 32, max_pixels=768 * 32 * 32)
    spec = VideoProcessorSpec(patches, area="clip", sampling="ends")
    before = ("<{seconds:.1f} seconds>", tokens.vision_start_token_id)
    slices = SliceForm(before, (tokens.vision_end_token_id,), tokens.video_token_id, "middle")
    return VideoFacts(tokens.video_token_id, read_video_processor(settings, spec), slices)


def _encoder_shape(vision: VisionConfig) -> EncoderShape:
    merged = vision.hidden_size * vision.block_rows
    num_mergers = 1 + len(vision.deepstack_visual_indexes)
    return EncoderShape(
        hidden_size=vision.hidden_size,
        intermediate_size=vision.intermediate_size,
        mlp_matrices=2,
        num_layers=vision.depth,
        full_attention_layers=tuple(range(vision.depth)),
        num_heads=vision.num_heads,
        feature_size=vision.feature_size,
        merge_size=vision.spatial_merge_size,
        outer_flops=2 * vision.hidden_size * (vision.patch_bytes + num_mergers * (merged + vision.out_hidden_size)),
    )


# Published checkpoints have the names of transformers 5; some tools write them without its outer "model.".
_RENAMES = (
    (r"^model\.visual\.", "visual."),
    (r"^model\.(?:language_model\.)?", "language_model."),
    (r"^visual\.patch_embed\.proj\.", "visual.patch_embed."),
    (r"^visual\.(merger|deepstack_merger_list\.\d+)\.linear_fc", r"visual.\1.mlp.fc"),
    (r"\.mlp\.linear_fc", ".mlp.fc"),
    (r"\.mlp\.experts\.(gate_up|down)_proj$", r".mlp.experts.\1_proj.weight"),
)


def module_name(name: str, config: Config) -> str:
    """Name of a weight in this file for a checkpoint tensor."""
    del config
    return substituted(name, _RENAMES)


MODEL = ModelEntry(
    parse_config=parse_config,
    facts=read_facts,
    normalisation=read_centred_normalisation,
    check_sharding=check_sharding,
    build=build,
    module_name=module_name,
    video=read_video,
)

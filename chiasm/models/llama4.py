"""Llama 4: a tower over tiles, and a language model whose layers attend within chunks or without rotation.

Shapes: n rows of a packed batch (patches in the tower, tokens in the language model), d hidden size, D head size,
T tiles of a pass, P patches of a tile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chiasm.errors import UserError
from chiasm.layers.attention import rows_of
from chiasm.layers.embedding import VocabEmbedding
from chiasm.layers.encoder import EncoderLayer
from chiasm.layers.linear import ColumnParallelLinear, QKVLinear, RowParallelLinear
from chiasm.layers.mlp import GatedMLP, PlainMLP
from chiasm.layers.moe import Experts, LogitRouter, MixtureOfExperts
from chiasm.layers.norm import LayerNorm, RMSNorm
from chiasm.layers.patch_embedding import PatchEmbedding, PixelNormalisation
from chiasm.layers.shards import HeadShard, shard_bounds, split_heads
from chiasm.layers.weight import Part, Placement, Weight
from chiasm.models.blocks import (
    block_positions,
    read_centred_normalisation,
    read_config,
    read_tile_processor,
    require_multiple,
    require_positive,
    require_setting,
    text_positions,
)
from chiasm.models.entry import BuildContext, DeepFeatures, ModelEntry, RopePositions
from chiasm.models.joined import JoinedModel, TowerConfig, check_sharding, joined_facts, substituted
from chiasm.models.weight_tying import WeightTying, read_weight_tying
from chiasm.ops.norm import rms_norm
from chiasm.ops.paged_attention import KVCache, PagedBatch, paged_attention
from chiasm.ops.rope import (
    LongContext,
    Rotation,
    grid_rotation,
    inverse_frequencies,
    rotate,
    stretched_frequencies,
    text_rotation,
)
from chiasm.ops.segments import Segments, SharedRows
from chiasm.schema.facts import EncoderShape, ModelFacts, TileForm
from chiasm.schema.media import MediaItem
from chiasm.vision.stages import Stages
from chiasm.vision.tables import PassTables
from chiasm.vision.units import Piece

# --------------------------------------------------------------------------------------------------------------------
# Config. Names and defaults are those of config.json and of transformers, but for those that all towers share.


class VisionConfig(TowerConfig, frozen=True):
    """The tower; ``out_hidden_size`` is the adapter's, which a projector brings to the language model's."""

    depth: int = 34
    hidden_size: int = 768
    intermediate_size: int = 5632
    hidden_act: str = "gelu"
    image_size: int = 448
    temporal_patch_size: int = 1
    norm_eps: float = 1e-5
    out_hidden_size: int = 7680
    projector_input_dim: int = 4096
    projector_output_dim: int = 4096
    pixel_shuffle_ratio: float = 0.5
    multi_modal_projector_bias: bool = False
    vision_feature_select_strategy: str = "default"

    @property
    def tile_side(self) -> int:
        """Side of a tile in patches."""
        return self.image_size // self.patch_size


class TextConfig(msgspec.Struct, frozen=True):
    """The language model.

    What says which layers have what may be left out; ``parse_config`` then makes the lists.
    """

    rope_theta: float
    long_context: LongContext | None = None
    vocab_size: int = 202048
    hidden_size: int = 5120
    intermediate_size: int = 8192
    intermediate_size_mlp: int = 16384
    num_hidden_layers: int = 48
    num_attention_heads: int = 40
    num_key_value_heads: int = 8
    head_dim: int = 128
    hidden_act: str = "silu"
    max_position_embeddings: int = 4096 * 32
    rms_norm_eps: float = 1e-5
    attention_bias: bool = False
    eos_token_id: int | tuple[int, ...] = 2
    num_experts_per_tok: int = 1
    num_local_experts: int = 16
    moe_layers: tuple[int, ...] = ()
    use_qk_norm: bool = True
    no_rope_layers: tuple[int, ...] = ()
    layer_types: tuple[str, ...] = ()
    attention_chunk_size: int | None = 8192
    attn_temperature_tuning: bool = True
    floor_scale: int = 8192
    attn_scale: float = 0.1

    def is_rotated(self, layer: int) -> bool:
        """Whether a layer has rotary positions; the setting's name says the opposite of what its ones mean."""
        return bool(self.no_rope_layers[layer])

    def chunk_size(self, layer: int) -> int | None:
        """Tokens of a chunk that a layer attends within; None where it attends to all before."""
        return self.attention_chunk_size if self.layer_types[layer] == "chunked_attention" else None


class JoinedConfig(msgspec.Struct, frozen=True):
    """Tokens that bracket and stand for media."""

    image_token_id: int = 200092
    image_start_token_id: int = 200080
    image_end_token_id: int = 200081


@dataclass(frozen=True)
class Config:
    """All of ``config.json`` that the model reads."""

    vision: VisionConfig
    text: TextConfig
    joined: JoinedConfig
    tying: WeightTying


def parse_config(raw: dict[str, Any]) -> Config:
    """Read the config.

    Raises:
        UserError: for values that are not supported or contradict each other.
    """
    config = Config(
        _read_vision(raw.get("vision_config") or {}),
        _read_text(raw.get("text_config") or {}),
        _read_joined(raw),
        read_weight_tying(raw),
    )
    config.tying.require_untied()
    _check_vision(config.vision)
    _check_text(config.text)
    return config


def _read_vision(raw: dict[str, Any]) -> VisionConfig:
    """With the names that all towers share."""
    shared = {
        "num_hidden_layers": "depth",
        "num_attention_heads": "num_heads",
        "num_channels": "in_channels",
        "vision_output_dim": "out_hidden_size",
    }
    named = {shared.get(key, key): value for key, value in raw.items()}
    rope = dict(raw.get("rope_parameters") or {})
    rope.setdefault("rope_theta", raw.get("rope_theta") or 10000.0)
    return read_config({**named, "rope_parameters": rope}, VisionConfig, "vision_config")


def _read_joined(raw: dict[str, Any]) -> JoinedConfig:
    named = {
        "image_token_id": raw.get("image_token_index", raw.get("image_token_id")),
        "image_start_token_id": raw.get("boi_token_index", raw.get("boi_token_id")),
        "image_end_token_id": raw.get("eoi_token_index", raw.get("eoi_token_id")),
    }
    return read_config(named, JoinedConfig, "config.json")


def _read_text(raw: dict[str, Any]) -> TextConfig:
    where = "text_config"
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    placed: dict[str, Any] = {
        "rope_theta": rope.get("rope_theta") or raw.get("rope_theta") or 500000.0,
        "long_context": _read_long_context(rope),
        # Null is not the same as left out: it means that no layer is chunked.
        "attention_chunk_size": raw.get("attention_chunk_size", 8192),
        "num_key_value_heads": raw.get("num_key_value_heads", 8) or raw.get("num_attention_heads", 40),
    }
    tuning = raw.get("attn_temperature_tuning")
    if tuning is not None:  # early checkpoints have a number there
        placed["attn_temperature_tuning"] = bool(tuning)
    config = read_config({**raw, **placed}, TextConfig, where)
    if placed["attention_chunk_size"] is None:
        config = msgspec.structs.replace(config, attention_chunk_size=None)
    layers = range(config.num_hidden_layers)
    if raw.get("moe_layers") is None:
        step = raw.get("interleave_moe_layer_step") or 1
        config = msgspec.structs.replace(config, moe_layers=tuple(layers[step - 1 :: step]))
    if not config.no_rope_layers:
        interval = raw.get("no_rope_layer_interval") or 4
        config = msgspec.structs.replace(config, no_rope_layers=tuple(int((i + 1) % interval != 0) for i in layers))
    if not config.layer_types:
        is_chunked = config.attention_chunk_size is not None
        kinds = (
            "chunked_attention" if is_chunked and has_rope else "full_attention" for has_rope in config.no_rope_layers
        )
        config = msgspec.structs.replace(config, layer_types=tuple(kinds))
    return config


def _read_long_context(rope: dict[str, Any]) -> tuple[Any, ...] | None:
    """The settings, in the order in which ``LongContext`` has them."""
    kind = rope.get("rope_type") or rope.get("type") or "default"
    require_setting("text config", "rope_type", kind, ["default", "llama3"])
    if kind == "default":
        return None
    missing = [key for key in LongContext._fields if rope.get(key) is None]
    if missing:
        raise UserError(f"rope_scaling of the checkpoint's text config lacks {', '.join(missing)}.", param="model")
    return tuple(rope[key] for key in LongContext._fields)


def _check_vision(vision: VisionConfig) -> None:
    where = "vision_config"
    require_setting(where, "hidden_act", vision.hidden_act, ["gelu"])
    require_setting(where, "num_channels", vision.in_channels, [3])
    require_setting(where, "pixel_shuffle_ratio", vision.pixel_shuffle_ratio, [0.5])
    require_setting(where, "multi_modal_projector_bias", vision.multi_modal_projector_bias, [False])
    require_setting(where, "vision_feature_select_strategy", vision.vision_feature_select_strategy, ["default"])
    require_positive(where, vision, ("depth", "hidden_size", "num_heads", "patch_size", "image_size"))
    require_setting(where, "intermediate_size", vision.intermediate_size, [vision.hidden_size * vision.block_rows])
    require_setting(where, "projector_input_dim", vision.projector_input_dim, [vision.projector_output_dim])
    require_setting(where, "vision_output_dim", vision.out_hidden_size, [vision.projector_output_dim])
    if vision.hidden_size % (4 * vision.num_heads):
        raise UserError(
            f"hidden_size={vision.hidden_size} of the checkpoint's {where} does not divide into num_attention_heads="
            f"{vision.num_heads} heads whose sizes are multiples of 4.",
            param="model",
        )
    block = vision.patch_size * vision.spatial_merge_size
    if vision.image_size % block:
        raise UserError(
            f"image_size={vision.image_size} of the checkpoint's {where} is no multiple of a merge block's {block} "
            "pixels.",
            param="model",
        )


def _check_text(text: TextConfig) -> None:
    where = "text config"
    require_setting(where, "hidden_act", text.hidden_act, ["silu"])
    require_setting(where, "attention_bias", text.attention_bias, [False])
    require_positive(
        where, text, ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim")
    )
    require_positive(
        where, text, ("intermediate_size", "intermediate_size_mlp", "floor_scale", "num_experts_per_tok")
    )
    require_multiple("text config", text, "num_attention_heads", "num_key_value_heads")
    if text.num_local_experts < text.num_experts_per_tok:
        raise UserError(
            f"num_experts_per_tok={text.num_experts_per_tok} of the checkpoint's config is more than its "
            f"num_local_experts={text.num_local_experts}.",
            param="model",
        )
    _check_layers(text)


def _check_layers(text: TextConfig) -> None:
    num_layers = text.num_hidden_layers
    for key, values in (("no_rope_layers", text.no_rope_layers), ("layer_types", text.layer_types)):
        if len(values) < num_layers:
            raise UserError(
                f"{key} of the checkpoint's text config has {len(values)} entries for {num_layers} layers.",
                param="model",
            )
    for kind in text.layer_types:
        require_setting("text config", "layer_types", kind, ["chunked_attention", "full_attention"])
    if "chunked_attention" in text.layer_types and (text.attention_chunk_size or 0) < 1:
        raise UserError(
            f"attention_chunk_size={text.attention_chunk_size} of the checkpoint's text config must be at least 1.",
            param="model",
        )
    outside = [layer for layer in text.moe_layers if not 0 <= layer < num_layers]
    if outside:
        raise UserError(
            f"moe_layers of the checkpoint's text config names layer {outside[0]}, of {num_layers}.", param="model"
        )


# --------------------------------------------------------------------------------------------------------------------
# Tower


class _Adapter(nn.Module):
    """Joins the patches of a merge block into one row; each of its two matrices has a gelu behind it."""

    def __init__(self, config: VisionConfig, placement: Placement) -> None:
        super().__init__()
        inner, size = config.projector_input_dim, config.out_hidden_size
        self.fc1 = ColumnParallelLinear(
            config.hidden_size * config.block_rows, inner, bias=False, placement=placement
        )
        self.fc2 = RowParallelLinear(inner, size, bias=False, placement=placement)

    def forward(self, x: Tensor) -> Tensor:
        """[blocks, 4 d] -> [blocks, size of the adapter]."""
        return F.gelu(self.fc2(F.gelu(self.fc1(x))))


class _Projector(nn.Module):
    """From the adapter's rows, which every rank has, to the language model's."""

    def __init__(self, in_features: int, out_features: int, placement: Placement) -> None:
        super().__init__()
        self.own = slice(*shard_bounds(in_features, placement.group))
        self.linear = RowParallelLinear(in_features, out_features, bias=False, placement=placement)

    def forward(self, x: Tensor) -> Tensor:
        """[n, in] -> [n, out]."""
        out: Tensor = self.linear(x[:, self.own])
        return out


class Tower(nn.Module):
    """Encodes tiles, each with a class token behind its patches, which adds a row to those that come in.

    It knows nothing of ranks beyond the group of its placement.
    """

    def __init__(
        self, config: VisionConfig, feature_size: int, normalisation: PixelNormalisation, placement: Placement
    ) -> None:
        super().__init__()
        self.config = config
        size, eps, side = config.hidden_size, config.norm_eps, config.tile_side
        self.patch_embed = PatchEmbedding((size, config.patch_bytes), normalisation, placement)
        self.class_embedding = Weight((size,), {"": Part.whole(size)}, placement.dtype, placement.device)
        table = (side**2 + 1, size)
        self.pos_embed = Weight(table, {"": Part.whole(*table)}, placement.dtype, placement.device)
        self.norm_pre = LayerNorm(size, eps, placement)
        heads = split_heads(config.num_heads, config.num_heads, config.head_dim, placement.group)
        self.layers = nn.ModuleList(_encoder_layer(config, heads, placement) for _ in range(config.depth))
        self.norm_post = LayerNorm(size, eps, placement)
        self.adapter = _Adapter(config, placement)
        self.projector = _Projector(config.out_hidden_size, feature_size, placement)
        self.frequencies = inverse_frequencies(
            config.head_dim // 2, config.rope_parameters["rope_theta"], placement.device
        )
        positions = torch.from_numpy(
            block_positions((side, side), config.spatial_merge_size)
        )  # [P, 2], row and column
        class_row = torch.full((1,), side**2)
        self.table_rows = torch.cat([positions[:, 0] * side + positions[:, 1], class_row]).to(placement.device)
        # Columns before rows, counted from 1: 0 in both is the class token's place.
        self.places = torch.cat([positions.flip(1) + 1, torch.zeros(1, 2, dtype=torch.int64)]).to(placement.device)

    def tables(self, pieces: Sequence[Piece], shared: SharedRows | None) -> PassTables:
        """Nothing of rows, which are alike in each tile, and whole tiles."""
        assert shared is None, "tiles are never cut"
        side = self.config.tile_side
        assert all(piece == Piece.whole((side, side)) for piece in pieces)
        return PassTables((), (Segments.from_lengths([side**2 + 1] * len(pieces)),))

    def stages(self, pixels: Tensor, rows: Sequence[Tensor], segments: Sequence[Segments]) -> Stages:
        """uint8 [T P, bytes of a patch] -> [T P / 4, feature size]; see ``TableTower``."""
        assert not rows
        [units] = segments
        side, size = self.config.tile_side, self.config.hidden_size
        num_tiles, num_rows = pixels.shape[0] // side**2, side**2 + 1
        patches = self.patch_embed(pixels).view(num_tiles, side**2, size)
        x = torch.cat([patches, self.class_embedding.expand(num_tiles, 1, size)], dim=1)
        x = self.norm_pre(x + self.pos_embed[self.table_rows]).flatten(0, 1)
        rotation = grid_rotation(self.places.repeat(num_tiles, 1), self.frequencies)._replace(pairing="neighbours")
        for layer in self.layers:
            x = layer(x, rotation, units)
            yield
        patches = self.norm_post(x.view(num_tiles, num_rows, size)[:, :-1])
        features: Tensor = self.projector(self.adapter(patches.reshape(-1, size * self.config.block_rows)))
        return features


def _encoder_layer(config: VisionConfig, heads: HeadShard, placement: Placement) -> EncoderLayer:
    size = config.hidden_size
    mlp = PlainMLP(size, config.intermediate_size, size, "gelu", placement)
    return EncoderLayer(size, heads, LayerNorm, mlp, placement, norm_eps=config.norm_eps, fused_qkv=False)


# --------------------------------------------------------------------------------------------------------------------
# Language model


class _Attention(nn.Module):
    """Attention of one layer: rotated, normalised and within chunks, or none of it and with a temperature."""

    def __init__(self, config: TextConfig, layer: int, heads: HeadShard, placement: Placement) -> None:
        super().__init__()
        self.is_rotated = config.is_rotated(layer)
        self.norm_eps = config.rms_norm_eps if config.use_qk_norm and self.is_rotated else None
        self.is_tempered = config.attn_temperature_tuning and not self.is_rotated
        self.chunk_size = config.chunk_size(layer)
        self.scale = heads.head_dim**-0.5
        self.qkv_proj = QKVLinear(config.hidden_size, heads, bias=False, placement=placement)
        width = heads.total_heads * heads.head_dim
        self.o_proj = RowParallelLinear(width, config.hidden_size, bias=False, placement=placement)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        temperature: Tensor,
        cache: KVCache,
        batch: PagedBatch,
        rows: Tensor | None,
    ) -> Tensor:
        """[n, d] -> [n, d], or what ``rows`` of them give; ``temperature`` is [n]."""
        q, k, v = self.qkv_proj(x)
        if self.is_rotated:
            q, k = rotate(q, rotation), rotate(k, rotation)
        if self.norm_eps is not None:
            q, k = rms_norm(q, None, self.norm_eps), rms_norm(k, None, self.norm_eps)
        if self.is_tempered:
            q = (q * temperature[:, None, None]).to(q.dtype)
        attended = paged_attention(q, k, v, cache, batch, self.scale, self.chunk_size)
        out: Tensor = self.o_proj(rows_of(attended.flatten(1), rows))
        return out


class _Layer(nn.Module):
    """One layer of the language model."""

    def __init__(self, config: TextConfig, layer: int, heads: HeadShard, placement: Placement) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps, placement)
        self.self_attn = _Attention(config, layer, heads, placement)
        self.post_attention_layernorm = RMSNorm(size, eps, placement)
        self.mlp = (
            _build_experts(config, placement)
            if layer in config.moe_layers
            else GatedMLP(size, config.intermediate_size_mlp, bias=False, placement=placement)
        )

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        temperature: Tensor,
        cache: KVCache,
        batch: PagedBatch,
        rows: Tensor | None,
    ) -> Tensor:
        """[n, d] -> [n, d], or [m, d] of the ``rows`` asked for."""
        x = rows_of(x, rows) + self.self_attn(self.input_layernorm(x), rotation, temperature, cache, batch, rows)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


def _build_experts(config: TextConfig, placement: Placement) -> MixtureOfExperts:
    size, inner, num_experts = config.hidden_size, config.intermediate_size, config.num_local_experts
    return MixtureOfExperts(
        LogitRouter(size, num_experts, config.num_experts_per_tok, placement),
        Experts(size, inner, num_experts, "in_out", placement, weighted="inputs"),
        GatedMLP(size, inner, bias=False, placement=placement),
    )


class TextModel(nn.Module):
    """The language model, whose positions are those of tokens."""

    def __init__(self, config: TextConfig, placement: Placement) -> None:
        super().__init__()
        self.config = config
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, placement.device)
        if config.long_context is not None:
            frequencies = stretched_frequencies(frequencies, config.long_context)
        self.frequencies = frequencies
        self.heads = split_heads(
            config.num_attention_heads, config.num_key_value_heads, config.head_dim, placement.group
        )
        self.embed_tokens = VocabEmbedding(config.vocab_size, config.hidden_size, placement)
        self.layers = nn.ModuleList(
            _Layer(config, layer, self.heads, placement) for layer in range(config.num_hidden_layers)
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
        """[n, d] and LongTensor [1, n] -> [n, d], or [m, d] of ``rows``."""
        assert deep is None
        [places] = positions
        rotation = text_rotation(places, self.frequencies, "neighbours")
        temperature = _temperature(places, self.config.floor_scale, self.config.attn_scale)
        x = embeds
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, rotation, temperature, cache, batch, rows if layer is self.layers[-1] else None)
        normed: Tensor = self.norm(x)
        return normed


def _temperature(positions: Tensor, floor_scale: int, strength: float) -> Tensor:
    """LongTensor [n] -> float32 [n], by which queries grow with the logarithm of what is before them.

    "Scalable-Softmax Is Superior for Attention", arXiv:2501.19399.
    """
    return torch.log1p(((positions + 1) // floor_scale).float()) * strength + 1


# --------------------------------------------------------------------------------------------------------------------
# Joined model


class Llama4Model(JoinedModel):
    """The tower and the language model; media are at the positions of their tokens."""

    def rope_positions(self, num_tokens: int, items: Sequence[MediaItem]) -> RopePositions:  # noqa: ARG002
        """Positions of a prompt, whatever its media."""
        return text_positions(num_tokens)


def build(config: Config, context: BuildContext) -> Llama4Model:
    """The unfilled model of one rank."""
    tower = Tower(config.vision, config.text.hidden_size, context.normalisation, context.vision)
    model = Llama4Model(config, tower, TextModel(config.text, context.text), context)
    model.chunk_sizes = tuple(dict.fromkeys(map(config.text.chunk_size, range(config.text.num_hidden_layers))))
    return model


# --------------------------------------------------------------------------------------------------------------------
# Processor, names of weights, entry


def read_facts(config: Config, processor: dict[str, Any], generation: dict[str, Any]) -> ModelFacts:
    """Facts for the processes without tensors."""
    tokens, vision = config.joined, config.vision
    return joined_facts(
        "llama4",
        config,
        generation,
        media_token_ids=(tokens.image_start_token_id, tokens.image_end_token_id, tokens.image_token_id),
        processor=read_tile_processor(processor, vision.layout, tile_size=vision.image_size, max_tiles=16),
        encoder=_encoder_shape(vision, config.text.hidden_size),
    )


def _encoder_shape(vision: VisionConfig, feature_size: int) -> EncoderShape:
    """The class token is not in it: one row to the 576 of a published checkpoint's tile."""
    adapter = vision.projector_input_dim * (vision.intermediate_size + vision.out_hidden_size)
    projector = vision.out_hidden_size * feature_size
    return EncoderShape(
        hidden_size=vision.hidden_size,
        intermediate_size=vision.intermediate_size,
        mlp_matrices=2,
        num_layers=vision.depth,
        full_attention_layers=tuple(range(vision.depth)),
        num_heads=vision.num_heads,
        feature_size=feature_size,
        merge_size=vision.spatial_merge_size,
        outer_flops=2 * (vision.hidden_size * vision.patch_bytes + (adapter + projector) // vision.block_rows),
        can_cut_rows=False,
        tile_side=vision.tile_side,
    )


_TILE_TOKENS = {
    "token_id": "<|image|>",
    "before": "<|image_start|>",
    "between": "<|tile_x_separator|>",
    "row_end": "<|tile_y_separator|>",
    "overview": "<|image|>",
    "after": "<|image_end|>",
}


def read_tiles(added_tokens: Mapping[str, int]) -> TileForm:
    """How tiles stand in a prompt; the config names only some of the tokens.

    Raises:
        UserError: if the tokenizer lacks one of them.
    """
    missing = sorted(set(_TILE_TOKENS.values()) - added_tokens.keys())
    if missing:
        raise UserError(f"tokenizer.json of the checkpoint lacks {', '.join(missing)}.", param="model")
    return TileForm(**{place: added_tokens[text] for place, text in _TILE_TOKENS.items()})


# The hub's names are those of transformers 5.
_RENAMES = (
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^language_model\.model\.", "language_model."),
    (r"\.feed_forward\.", ".mlp."),
    (r"\.mlp\.router\.", ".mlp.gate."),
    (r"\.mlp\.shared_expert\.", ".mlp.shared_experts."),
    (r"(\.experts\.(?:gate_up|down)_proj)$", r"\1.weight"),
    (r"^multi_modal_projector\.linear_1\.", "visual.projector.linear."),
    (r"^vision_model\.(?:model\.)?", "visual."),
    (r"^visual\.patch_embedding\.linear\.", "visual.patch_embed."),
    (r"^visual\.positional_embedding_vlm$", "visual.pos_embed"),
    (r"^visual\.layernorm_(pre|post)\.", r"visual.norm_\1."),
    (r"^visual\.vision_adapter\.mlp\.", "visual.adapter."),
    (r"^(visual\.layers\.\d+)\.self_attn\.", r"\1.attn."),
    (r"^(visual\.layers\.\d+\.attn)\.o_proj\.", r"\1.proj."),
    (r"^(visual\.layers\.\d+)\.input_layernorm\.", r"\1.norm1."),
    (r"^(visual\.layers\.\d+)\.post_attention_layernorm\.", r"\1.norm2."),
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
    tiles=read_tiles,
)

"""GLM-4V: GLM-4.1V, whose language model is GLM-4, and GLM-4.5V, a mixture of experts; both have the same tower.

GLM-4.6V and GLM-4.6V-Flash are these two models once more, with another way to take videos.

Shapes: n rows of a packed batch (patches in the tower, tokens in the language model), d hidden size, D head size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from chiasm.errors import UserError
from chiasm.layers.attention import SegmentAttention
from chiasm.layers.decoder import DecoderLayer, DecoderShape, SandwichDecoderLayer
from chiasm.layers.embedding import VocabEmbedding
from chiasm.layers.linear import BlockConvolution, RowParallelLinear
from chiasm.layers.mlp import GatedMLP
from chiasm.layers.moe import ExpertLayout, Experts, GroupedChoice, MixtureOfExperts, SigmoidRouter
from chiasm.layers.norm import LayerNorm, RMSNorm
from chiasm.layers.patch_embedding import PatchEmbedding, PixelNormalisation
from chiasm.layers.shards import HeadShard, split_heads
from chiasm.layers.weight import Part, Placement, Weight
from chiasm.models.blocks import (
    IntArray,
    piece_positions,
    read_config,
    read_normalisation,
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
from chiasm.ops.rope import Pairing, Rotation, grid_rotation, inverse_frequencies, multimodal_rotation
from chiasm.ops.segments import Segments, SharedRows
from chiasm.schema.facts import EncoderShape, ModelFacts, SliceForm, VideoFacts
from chiasm.schema.media import PatchProcessorSpec, VideoProcessorSpec
from chiasm.vision.stages import Stages
from chiasm.vision.tables import PassTables
from chiasm.vision.units import Piece

# --------------------------------------------------------------------------------------------------------------------
# Config. Names and defaults are those of config.json and of transformers.


class VisionConfig(TowerConfig, frozen=True):
    """The tower. Its MLPs are as wide as a feature row, and ``intermediate_size`` is the merger's."""

    depth: int = 24
    hidden_size: int = 1536
    hidden_act: str = "silu"
    attention_bias: bool = False
    num_heads: int = 12
    image_size: int = 336
    rms_norm_eps: float = 1e-5
    out_hidden_size: int = 4096
    intermediate_size: int = 13696

    @property
    def table_side(self) -> int:
        """Side of the table of position embeddings in patches."""
        return self.image_size // self.patch_size


class TextConfig(msgspec.Struct, frozen=True):
    """GLM-4; the first three are found in more than one place and put here."""

    rope_theta: float
    partial_rotary_factor: float
    mrope_section: tuple[int, int, int]
    vocab_size: int = 151552
    hidden_size: int = 4096
    intermediate_size: int = 13696
    num_hidden_layers: int = 40
    num_attention_heads: int = 32
    num_key_value_heads: int = 2
    head_size: int | None = msgspec.field(default=None, name="head_dim")
    hidden_act: str = "silu"
    max_position_embeddings: int = 32768
    rms_norm_eps: float = 1e-5
    attention_bias: bool = True
    eos_token_id: int | tuple[int, ...] = ()

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.head_size or self.hidden_size // self.num_attention_heads

    @property
    def rotary_dim(self) -> int:
        """Elements of a head that are rotated."""
        return int(self.head_dim * self.partial_rotary_factor)

    @property
    def pairing(self) -> Pairing:
        """Which of these are rotated together."""
        return "neighbours"


class MoeTextConfig(TextConfig, frozen=True, kw_only=True):
    """GLM-4.5, a mixture of experts behind a few dense layers."""

    vocab_size: int = 151424
    intermediate_size: int = 10944
    num_hidden_layers: int = 46
    num_attention_heads: int = 96
    num_key_value_heads: int = 8
    max_position_embeddings: int = 65536
    moe_intermediate_size: int = 1408
    num_experts_per_tok: int = 8
    n_shared_experts: int = 1
    n_routed_experts: int = 128
    routed_scaling_factor: float = 1.0
    n_group: int = 1
    topk_group: int = 1
    first_k_dense_replace: int = 1
    norm_topk_prob: bool = True
    use_qk_norm: bool = False
    num_nextn_predict_layers: int = 0

    @property
    def pairing(self) -> Pairing:
        """Which elements of a head are rotated together."""
        return "halves"


class JoinedConfig(msgspec.Struct, frozen=True):
    """Tokens that bracket and stand for media."""

    image_token_id: int = 151343
    video_token_id: int = 151344
    image_start_token_id: int = 151339
    image_end_token_id: int = 151340
    video_start_token_id: int = 151341
    video_end_token_id: int = 151342


class MoeJoinedConfig(JoinedConfig, frozen=True):
    """The same with the defaults of GLM-4.5V."""

    image_token_id: int = 151363
    video_token_id: int = 151364


@dataclass(frozen=True)
class Config:
    """All of ``config.json`` that the model reads."""

    model_type: str
    vision: VisionConfig
    text: TextConfig
    joined: JoinedConfig
    tying: WeightTying


def parse_config(raw: dict[str, Any]) -> Config:
    """Read ``config.json`` of either family.

    Raises:
        UserError: for values that are not supported or contradict each other.
    """
    has_experts = raw["model_type"] == "glm4v_moe"
    text = raw.get("text_config") or raw
    kind = MoeJoinedConfig if has_experts else JoinedConfig
    config = Config(
        model_type=raw["model_type"],
        vision=read_config(raw.get("vision_config") or {}, VisionConfig, "vision_config"),
        text=_read_text(text, has_experts=has_experts),
        joined=read_config(raw, kind, "config.json"),
        tying=read_weight_tying(raw),
    )
    _check_vision(config)
    _check_text(config.text)
    if isinstance(config.text, MoeTextConfig):
        _check_experts(config.text)
    return config


def _read_text(text: dict[str, Any], *, has_experts: bool) -> TextConfig:
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    require_setting("text config", "rope_type", rope_type, ["default"])
    factor = rope.get("partial_rotary_factor") or text.get("partial_rotary_factor")
    placed = {
        "rope_theta": rope.get("rope_theta") or text.get("rope_theta") or 10000.0,
        "partial_rotary_factor": factor or (0.5 if has_experts else 1.0),
        "mrope_section": rope.get("mrope_section") or (8, 12, 12),
    }
    if text.get("num_key_value_heads", 0) is None:  # a key-value head for each query head
        placed["num_key_value_heads"] = text.get("num_attention_heads")
    kind = MoeTextConfig if has_experts else TextConfig
    return read_config({**text, **placed}, kind, "text_config")


def _check_vision(config: Config) -> None:
    vision = config.vision
    require_setting("vision_config", "hidden_act", vision.hidden_act, ["silu"])
    require_setting("vision_config", "attention_bias", vision.attention_bias, [False])
    require_setting("vision_config", "in_channels", vision.in_channels, [3])
    require_setting("vision_config", "out_hidden_size", vision.out_hidden_size, [config.text.hidden_size])
    check_tower(vision, "intermediate_size", "table_side")


def _check_text(text: TextConfig) -> None:
    require_setting("text config", "hidden_act", text.hidden_act, ["silu"])
    require_positive("text config", text, TEXT_SIZES)
    require_multiple("text config", text, "num_attention_heads", "num_key_value_heads")
    if not 0 < text.partial_rotary_factor <= 1:
        raise UserError(
            f"partial_rotary_factor={text.partial_rotary_factor} in the checkpoint's text config must be in (0, 1].",
            param="model",
        )
    require_sections(text.mrope_section, text.rotary_dim)


def _check_experts(text: MoeTextConfig) -> None:
    where = "text config"
    require_positive(where, text, ("moe_intermediate_size", "num_experts_per_tok", "n_shared_experts", "topk_group"))
    require_positive(where, text, ("n_group", "n_routed_experts"))
    if text.n_routed_experts % text.n_group or text.topk_group > text.n_group:
        raise UserError(
            f"n_group={text.n_group} of the checkpoint's config does not divide n_routed_experts="
            f"{text.n_routed_experts}, or is less than topk_group={text.topk_group}.",
            param="model",
        )
    if text.topk_group < text.n_group and text.n_routed_experts < 2 * text.n_group:
        raise UserError(
            f"n_group={text.n_group} of the checkpoint's config leaves less than two of n_routed_experts="
            f"{text.n_routed_experts} for a group, and the best groups are told by two.",
            param="model",
        )
    num_kept = text.n_routed_experts // text.n_group * text.topk_group
    if text.num_experts_per_tok > num_kept:
        raise UserError(
            f"num_experts_per_tok={text.num_experts_per_tok} of the checkpoint's config is more than the {num_kept} "
            "experts that they are chosen from.",
            param="model",
        )


# --------------------------------------------------------------------------------------------------------------------
# Tower


class _PositionEmbedding(nn.Module):
    """A square table of embeddings that is stretched over a unit's grid by bicubic interpolation; never sharded."""

    def __init__(self, config: VisionConfig, placement: Placement) -> None:
        super().__init__()
        self.side = config.table_side
        shape = (self.side**2, config.hidden_size)
        self.weight = Weight(shape, {"": Part.whole(*shape)}, placement.dtype, placement.device)

    def forward(self, positions: Tensor, sizes: Tensor) -> Tensor:
        """Embeddings of patches, by their positions in grids of these sizes.

        Args:
            positions: LongTensor [n, 2], row and column of each patch.
            sizes: LongTensor [n, 2], rows and columns of its grid.

        Returns:
            [n, d].
        """
        wide = torch.promote_types(self.weight.dtype, torch.float32)
        table = self.weight.to(wide).T.unflatten(1, (1, self.side, self.side)).transpose(0, 1)  # [1, d, side, side]
        points = (positions + 0.5) / sizes * 2 - 1  # the centres of patches, where a grid is from -1 to 1
        across = points.flip(1).to(wide)[None, :, None]  # [1, n, 1, 2], column before row
        sampled = F.grid_sample(table, across, mode="bicubic", padding_mode="border", align_corners=False)
        return sampled[0, :, :, 0].T.to(self.weight.dtype)


class _Block(nn.Module):
    """One layer of the tower."""

    def __init__(self, config: VisionConfig, heads: HeadShard, placement: Placement) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.norm1 = RMSNorm(size, eps, placement)
        self.attn = SegmentAttention(size, heads, bias=False, placement=placement)
        self.norm2 = RMSNorm(size, eps, placement)
        self.mlp = GatedMLP(size, config.out_hidden_size, bias=False, placement=placement)

    def forward(self, x: Tensor, rotation: Rotation, segments: Segments) -> Tensor:
        """[n, d] -> [n, d]."""
        x = x + self.attn(self.norm1(x), rotation, segments)
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class _Merger(nn.Module):
    """From the outputs of the downsampling, which are sharded, to feature rows of the language model."""

    def __init__(self, config: VisionConfig, placement: Placement) -> None:
        super().__init__()
        size = config.out_hidden_size
        self.proj = RowParallelLinear(size, size, bias=False, placement=placement)
        self.post_projection_norm = LayerNorm(size, 1e-5, placement)
        self.mlp = GatedMLP(size, config.intermediate_size, bias=False, placement=placement)

    def forward(self, x: Tensor) -> Tensor:
        """[blocks, this rank's share of a feature] -> [blocks, feature size]."""
        features: Tensor = self.mlp(F.gelu(self.post_projection_norm(self.proj(x))))
        return features


class Tower(nn.Module):
    """Encodes packed units. It knows nothing of ranks beyond the group of its placement."""

    def __init__(self, config: VisionConfig, normalisation: PixelNormalisation, placement: Placement) -> None:
        super().__init__()
        self.merge_size = config.spatial_merge_size
        theta = config.rope_parameters.get("rope_theta") or 10000.0
        self.frequencies = inverse_frequencies(config.head_dim // 2, theta, placement.device)
        size, eps = config.hidden_size, config.rms_norm_eps
        kernel = (config.temporal_patch_size, config.patch_size, config.patch_size)
        self.patch_embed = PatchEmbedding((size, config.in_channels, *kernel), normalisation, placement, bias=True)
        self.post_conv_layernorm = RMSNorm(size, eps, placement)
        self.embeddings = _PositionEmbedding(config, placement)
        heads = split_heads(config.num_heads, config.num_heads, config.head_dim, placement.group)
        self.blocks = nn.ModuleList(_Block(config, heads, placement) for _ in range(config.depth))
        self.post_layernorm = RMSNorm(size, eps, placement)
        self.downsample = BlockConvolution(size, config.out_hidden_size, self.merge_size, placement=placement)
        self.merger = _Merger(config, placement)

    def tables(self, pieces: Sequence[Piece], shared: SharedRows | None) -> PassTables:
        """Positions [n, 2] and sizes of the grids that they are in [n, 2], and whole units."""
        positions = piece_positions(pieces, self.merge_size)
        return PassTables((positions, _grid_sizes(pieces)), (unit_segments(pieces, shared),))

    def stages(self, pixels: Tensor, rows: Sequence[Tensor], segments: Sequence[Segments]) -> Stages:
        """uint8 [n, bytes of a patch] -> [n / 4, feature size]; see ``TableTower``."""
        (positions, sizes), [units] = rows, segments
        rotation = grid_rotation(positions, self.frequencies)
        x = self.post_conv_layernorm(self.patch_embed(pixels))
        x = x + self.embeddings(positions, sizes)
        for block in self.blocks:
            x = block(x, rotation, units)
            yield
        features: Tensor = self.merger(self.downsample(self.post_layernorm(x)))
        return features


def _grid_sizes(pieces: Sequence[Piece]) -> IntArray:
    """[n, 2], rows and columns of the grid that each row of packed pieces belongs to."""
    grids = np.array([piece.grid for piece in pieces], np.int64).reshape(-1, 2)
    return np.repeat(grids, [piece.num_rows for piece in pieces], axis=0)


# --------------------------------------------------------------------------------------------------------------------
# Language model


class TextModel(nn.Module):
    """GLM-4 or GLM-4.5, with rotary positions in time, height and width."""

    def __init__(self, config: TextConfig, expert_layout: ExpertLayout, placement: Placement) -> None:
        super().__init__()
        self.pairing = config.pairing
        self.mrope_section = config.mrope_section
        self.frequencies = inverse_frequencies(config.rotary_dim, config.rope_theta, placement.device)
        self.heads = split_heads(
            config.num_attention_heads, config.num_key_value_heads, config.head_dim, placement.group
        )
        self.embed_tokens = VocabEmbedding(config.vocab_size, config.hidden_size, placement)
        self.layers = nn.ModuleList(
            _build_layer(config, index, self.heads, expert_layout, placement)
            for index in range(config.num_hidden_layers)
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
        assert deep is None
        rotation = multimodal_rotation(positions, self.frequencies, self.mrope_section)
        rotation = rotation._replace(pairing=self.pairing).to(embeds.dtype)
        x = embeds
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, rotation, cache, batch, rows if layer is self.layers[-1] else None)
        normed: Tensor = self.norm(x)
        return normed


def _build_layer(
    config: TextConfig, index: int, heads: HeadShard, layout: ExpertLayout, placement: Placement
) -> DecoderLayer:
    shape = DecoderShape(
        config.hidden_size,
        config.intermediate_size,
        heads,
        config.rms_norm_eps,
        qkv_bias=config.attention_bias,
        qk_norm=isinstance(config, MoeTextConfig) and config.use_qk_norm,
    )
    if not isinstance(config, MoeTextConfig):
        mlp = GatedMLP(config.hidden_size, config.intermediate_size, bias=False, placement=placement, fused=True)
        return SandwichDecoderLayer(shape, placement, mlp)
    if index < config.first_k_dense_replace:
        return DecoderLayer(shape, placement)
    return DecoderLayer(shape, placement, _build_experts(config, layout, placement))


def _build_experts(config: MoeTextConfig, layout: ExpertLayout, placement: Placement) -> MixtureOfExperts:
    size, inner, num_experts = config.hidden_size, config.moe_intermediate_size, config.n_routed_experts
    choice = GroupedChoice(
        num_chosen=config.num_experts_per_tok,
        num_groups=config.n_group,
        num_groups_kept=config.topk_group,
        is_normalised=config.norm_topk_prob,
        factor=config.routed_scaling_factor,
    )
    return MixtureOfExperts(
        SigmoidRouter(size, num_experts, choice, placement),
        Experts(size, inner, num_experts, layout, placement),
        GatedMLP(size, inner * config.n_shared_experts, bias=False, placement=placement),
    )


def _expert_layout(tensor_names: Iterable[str]) -> ExpertLayout:
    """Published checkpoints keep experts apart; transformers 5 may write them as it computes with them."""
    return "out_in" if any(name.endswith(".experts.gate_up_proj") for name in tensor_names) else "apart"


# --------------------------------------------------------------------------------------------------------------------
# Joined model


def build(config: Config, context: BuildContext) -> JoinedModel:
    """The unfilled model of one rank."""
    tower = Tower(config.vision, context.normalisation, context.vision)
    text = TextModel(config.text, _expert_layout(context.tensor_names), context.text)
    return JoinedModel(config, tower, text, context)


# --------------------------------------------------------------------------------------------------------------------
# Processor, names of weights, entry


def read_facts(config: Config, processor: dict[str, Any], generation: dict[str, Any]) -> ModelFacts:
    """Facts for the processes without tensors."""
    tokens = config.joined
    patches = config.vision.patches(min_pixels=112 * 112, max_pixels=28 * 28 * 15000, enlarges_thin=True)
    return joined_facts(
        config.model_type,
        config,
        generation,
        media_token_ids=(
            tokens.image_start_token_id,
            tokens.image_end_token_id,
            tokens.image_token_id,
            tokens.video_start_token_id,
            tokens.video_end_token_id,
            tokens.video_token_id,
        ),
        processor=_limits_for_pictures(read_patch_processor(processor, patches)),
        encoder=_encoder_shape(config.vision),
    )


def read_video(config: Config, settings: dict[str, Any]) -> VideoFacts:
    """How videos are taken: each slice as a picture with its second behind it."""
    tokens = config.joined
    patches = config.vision.patches(min_pixels=112 * 112, max_pixels=28 * 28 * 2 * 30000)
    if _is_version_6(settings):
        spec = VideoProcessorSpec(
            patches, area="clip", sampling="duration", rates=_RATES, max_frames_by_fps=640, max_seconds=2400.0
        )
        time = "{seconds:.1f} seconds"
    else:
        spec, time = VideoProcessorSpec(patches, area="clip", sampling="seconds"), "{whole_seconds}"
    slices = SliceForm(
        (tokens.image_start_token_id,), (tokens.image_end_token_id, time), tokens.image_token_id, "first"
    )
    return VideoFacts(tokens.video_token_id, read_video_processor(settings, spec), slices)


# Frames for each second of videos up to half a minute, up to five minutes, and longer ones.
_RATES = ((30.0, 6.0), (300.0, 2.0), (2400.0, 1.0))


def _is_version_6(settings: dict[str, Any]) -> bool:
    """Whether videos are taken as GLM-4.6V does it: nothing but the processor's name tells.

    Where a checkpoint has no settings for videos alone, transformers goes by the image processor's name.
    """
    name = settings.get("video_processor_type") or settings.get("image_processor_type")
    return isinstance(name, str) and name.startswith("Glm46V")


def _limits_for_pictures(spec: PatchProcessorSpec) -> PatchProcessorSpec:
    """The limits of a checkpoint count a picture's area once for each frame of a patch."""
    num_frames = spec.temporal_patch_size
    least, most = -(-spec.min_pixels // num_frames), spec.max_pixels // num_frames
    return msgspec.structs.replace(spec, min_pixels=least, max_pixels=most)


def _encoder_shape(vision: VisionConfig) -> EncoderShape:
    feature = vision.out_hidden_size
    merger = feature * (feature + 3 * vision.intermediate_size) // vision.block_rows
    return EncoderShape(
        hidden_size=vision.hidden_size,
        intermediate_size=feature,
        mlp_matrices=3,
        num_layers=vision.depth,
        full_attention_layers=tuple(range(vision.depth)),
        num_heads=vision.num_heads,
        feature_size=feature,
        merge_size=vision.spatial_merge_size,
        outer_flops=2 * (vision.hidden_size * (vision.patch_bytes + feature) + merger),
    )


# Checkpoints have "visual." and "model.", or both below "model.", whichever class of transformers wrote them.
_RENAMES = (
    (r"^model\.visual\.", "visual."),
    (r"^model\.(?:language_model\.)?", "language_model."),
    (r"^visual\.patch_embed\.proj\.", "visual.patch_embed."),
    (r"^visual\.embeddings\.position_embedding\.", "visual.embeddings."),
    (r"^visual\.merger\.((?:gate|up|down)_proj)\.", r"visual.merger.mlp.\1."),
    (r"(\.experts\.(?:gate_up|down)_proj)$", r"\1.weight"),
)


def module_name(name: str, config: Config) -> str | None:
    """Name of a weight in this file for a checkpoint tensor.

    None for layers that guess at further tokens, which are not used.
    """
    target = substituted(name, _RENAMES)
    layer = re.match(r"language_model\.layers\.(\d+)\.", target)
    if layer is not None and isinstance(config.text, MoeTextConfig):
        num_beyond = int(layer[1]) - config.text.num_hidden_layers
        if 0 <= num_beyond < config.text.num_nextn_predict_layers:
            return None
    return target


MODEL = ModelEntry(
    parse_config=parse_config,
    facts=read_facts,
    normalisation=read_normalisation,
    check_sharding=check_sharding,
    build=build,
    module_name=module_name,
    video=read_video,
)

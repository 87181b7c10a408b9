"""Mllama (Llama 3.2 Vision): a tower over the tiles of a picture, and Llama with layers that attend to its features.

Shapes: n rows of a packed batch (rows of units in the tower, tokens in the language model), d hidden size, D head
size, M tiles of a unit.
"""

from __future__ import annotations

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
from chiasm.layers.attention import CrossAttention, Memory, rows_of
from chiasm.layers.decoder import DecoderLayer, DecoderShape
from chiasm.layers.embedding import OutputProjection, VocabEmbedding
from chiasm.layers.linear import QKVLinear, RowParallelLinear
from chiasm.layers.mlp import GatedMLP, PlainMLP
from chiasm.layers.norm import LayerNorm, RMSNorm
from chiasm.layers.patch_embedding import PatchEmbedding, PixelNormalisation
from chiasm.layers.shards import HeadShard, check_text_heads, check_vision_heads, shard_bounds, split_heads
from chiasm.layers.weight import Part, Placement, Weight
from chiasm.models.blocks import (
    eos_token_ids,
    known_token_ids,
    read_centred_normalisation,
    read_config,
    require_multiple,
    require_positive,
    require_setting,
    whole_pieces,
)
from chiasm.models.entry import BuildContext, DeepFeatures, ModelEntry, RopePositions, SeenUnits
from chiasm.models.joined import substituted
from chiasm.models.weight_tying import WeightTying, read_weight_tying, settle_weight_tying
from chiasm.multimodal.sizes import tile_layouts
from chiasm.ops.attention import segment_attention
from chiasm.ops.paged_attention import KVCache, PagedBatch
from chiasm.ops.rope import LongContext, inverse_frequencies, stretched_frequencies, text_rotation
from chiasm.ops.segments import Segments, SharedRows
from chiasm.schema.facts import EncoderShape, ModelFacts
from chiasm.schema.media import CanvasProcessorSpec, CanvasShape, MediaItem
from chiasm.vision.stages import Stages
from chiasm.vision.units import Piece

# --------------------------------------------------------------------------------------------------------------------
# Config. Names and defaults are those of config.json and of transformers.

_NUM_INPUT_ONLY = 8  # rows that the input embeddings have beyond the output projection; one is the placeholder's


class VisionConfig(msgspec.Struct, frozen=True):
    """The tower: local layers, then gated global ones; both attend over all tiles of a picture."""

    hidden_size: int = 1280
    hidden_act: str = "gelu"
    num_hidden_layers: int = 32
    num_global_layers: int = 8
    attention_heads: int = 16
    num_channels: int = 3
    intermediate_size: int = 5120
    vision_output_dim: int = 7680
    image_size: int = 448
    patch_size: int = 14
    norm_eps: float = 1e-5
    max_num_tiles: int = 4
    intermediate_layers_indices: tuple[int, ...] = (3, 7, 15, 23, 30)
    supported_aspect_ratios: tuple[tuple[int, int], ...] | None = None

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.hidden_size // self.attention_heads

    @property
    def patch_bytes(self) -> int:
        """Bytes of a flattened patch."""
        return self.num_channels * self.patch_size**2

    @property
    def canvas(self) -> CanvasShape:
        """Of a unit."""
        return CanvasShape(self.image_size // self.patch_size, self.max_num_tiles)


class TextConfig(msgspec.Struct, frozen=True):
    """Llama 3.1 with layers of cross-attention among its own; the rotary embedding's values are put here."""

    rope_theta: float = 500000.0
    rope_scaling: RopeScaling | None = None
    vocab_size: int = 128256
    hidden_size: int = 4096
    intermediate_size: int = 14336
    num_hidden_layers: int = 40
    num_attention_heads: int = 32
    num_key_value_heads: int = 8
    hidden_act: str = "silu"
    max_position_embeddings: int = 131072
    rms_norm_eps: float = 1e-5
    cross_attention_layers: tuple[int, ...] = (3, 8, 13, 18, 23, 28, 33, 38)
    eos_token_id: int | tuple[int, ...] = 128001

    @property
    def head_dim(self) -> int:
        """Size of an attention head."""
        return self.hidden_size // self.num_attention_heads


class RopeScaling(msgspec.Struct, frozen=True):
    """How Llama 3.1 stretches its rotary frequencies; see ``stretched_frequencies``."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position_embeddings: int


@dataclass(frozen=True)
class Config:
    """All of ``config.json`` that the model reads."""

    vision: VisionConfig
    text: TextConfig
    image_token_id: int
    tying: WeightTying


class _Joined(msgspec.Struct, frozen=True):
    image_token_index: int = 128256


def parse_config(raw: dict[str, Any]) -> Config:
    """Read ``config.json``.

    Raises:
        UserError: for values that are not supported or contradict each other.
    """
    joined = read_config(raw, _Joined, "config.json")
    config = Config(
        vision=read_config(raw.get("vision_config") or {}, VisionConfig, "vision_config"),
        text=_read_text(raw.get("text_config") or {}),
        image_token_id=joined.image_token_index,
        tying=read_weight_tying(raw),
    )
    config.tying.require_untied()
    _check_vision(config.vision)
    _check_text(config.text)
    num_inputs = config.text.vocab_size + _NUM_INPUT_ONLY
    if not 0 <= config.image_token_id < num_inputs:
        raise UserError(
            f"image_token_index={config.image_token_id} of the checkpoint's config is none of its {num_inputs} input "
            "embeddings.",
            param="model",
        )
    return config


def _read_text(text: dict[str, Any]) -> TextConfig:
    rope = text.get("rope_scaling") or text.get("rope_parameters") or {}
    rope_type = rope.get("rope_type") or rope.get("type") or "default"
    require_setting("text_config", "rope_type", rope_type, ["default", "llama3"])
    placed: dict[str, Any] = {
        "rope_theta": rope.get("rope_theta") or text.get("rope_theta"),
        "rope_scaling": rope if rope_type == "llama3" else None,
    }
    if text.get("num_key_value_heads", 0) is None:  # a key-value head for each query head
        placed["num_key_value_heads"] = text.get("num_attention_heads")
    return read_config({**text, **placed}, TextConfig, "text_config")


def _check_vision(vision: VisionConfig) -> None:
    where = "vision_config"
    require_setting(where, "hidden_act", vision.hidden_act, ["gelu"])
    require_setting(where, "num_channels", vision.num_channels, [3])
    require_positive(where, vision, ("hidden_size", "attention_heads", "patch_size", "max_num_tiles"))
    require_positive(where, vision, ("num_hidden_layers",))
    indices = vision.intermediate_layers_indices
    if len(set(indices)) != len(indices) or not all(0 <= index < vision.num_hidden_layers for index in indices):
        raise UserError(
            f"intermediate_layers_indices={list(indices)} of the checkpoint's {where} must be different layers below "
            f"num_hidden_layers={vision.num_hidden_layers}.",
            param="model",
        )
    width = vision.hidden_size * (1 + len(indices))
    require_setting(where, "vision_output_dim", vision.vision_output_dim, [width])
    layouts = tuple(tile_layouts(vision.max_num_tiles))
    require_setting(where, "supported_aspect_ratios", vision.supported_aspect_ratios, [None, layouts])
    require_multiple(where, vision, "hidden_size", "attention_heads")
    require_multiple(where, vision, "image_size", "patch_size")
    require_positive(where, vision.canvas, ("side",))


def _check_text(text: TextConfig) -> None:
    where = "text_config"
    require_setting(where, "hidden_act", text.hidden_act, ["silu"])
    require_positive(where, text, ("vocab_size", "hidden_size", "num_attention_heads", "num_key_value_heads"))
    require_multiple(where, text, "hidden_size", "num_attention_heads")
    require_multiple(where, text, "num_attention_heads", "num_key_value_heads")
    layers = text.cross_attention_layers
    if not layers or len(set(layers)) != len(layers) or not all(0 <= i < text.num_hidden_layers for i in layers):
        raise UserError(
            f"cross_attention_layers={list(layers)} of the checkpoint's {where} must be different layers below "
            f"num_hidden_layers={text.num_hidden_layers}, at least one.",
            param="model",
        )


# --------------------------------------------------------------------------------------------------------------------
# Tower


class _Places(NamedTuple):
    """Where a unit's rows are, in cut order.

    First the patches of tiles with a picture, which are the rows with pixels, and the class tokens of these tiles;
    then the patches and the class tokens of the tiles that are padding; then the rows that fill up each tile.

    Attributes:
        tiles: [rows], the tile of each row.
        places: [rows], 0 for a class token, from 1 on for patches, -1 for what fills up a tile.
    """

    tiles: npt.NDArray[np.int64]
    places: npt.NDArray[np.int64]


@lru_cache(maxsize=64)
def _unit_places(num_used: int, shape: CanvasShape) -> _Places:
    num_patches, num_filling = shape.side**2, shape.tile_rows - shape.seen_rows
    tiles, places = [], []
    for group in (np.arange(num_used), np.arange(num_used, shape.num_tiles)):
        tiles += [np.repeat(group, num_patches), group]
        places += [np.tile(np.arange(1, num_patches + 1), len(group)), np.zeros_like(group)]
    tiles.append(np.repeat(np.arange(shape.num_tiles), num_filling))
    places.append(np.full(shape.num_tiles * num_filling, -1))
    return _Places(np.concatenate(tiles), np.concatenate(places))


@dataclass(frozen=True)
class _RowPlaces:
    """Where the rows of packed pieces are: LongTensors.

    Attributes:
        with_pixels: rows that have pixels, in the order of these.
        patches: rows of patches.
        classes: rows of class tokens.
        inside: rows of either.
        tiles: [n], entries of a table with M entries for each layout of tiles.
        places: [n], from 0; what fills up a tile has none (-1).
    """

    with_pixels: Tensor
    patches: Tensor
    classes: Tensor
    inside: Tensor
    tiles: Tensor
    places: Tensor

    @classmethod
    def of(cls, pieces: Sequence[Piece], shape: CanvasShape, device: torch.device) -> _RowPlaces:
        layouts = tile_layouts(shape.num_tiles)
        tiles, places, pixels = ([np.empty(0, np.int64)] for _ in range(3))
        first = 0
        for grid, start, stop in pieces:
            unit = _unit_places(shape.num_used(grid), shape)
            layout = 1 + layouts.index((grid[0] // shape.side, grid[1] // shape.side))  # 0 stands for no picture
            tiles.append(layout * shape.num_tiles + unit.tiles[start:stop])
            places.append(unit.places[start:stop])
            num_pixels = max(0, min(stop, grid[0] * grid[1]) - start)
            pixels.append(np.arange(first, first + num_pixels))
            first += stop - start
        where = np.concatenate(places)
        found = (
            np.concatenate(pixels),
            np.flatnonzero(where > 0),
            np.flatnonzero(where == 0),
            np.flatnonzero(where >= 0),
            np.concatenate(tiles),
            where,
        )
        return cls(*(torch.from_numpy(array).to(device) for array in found))


class _Table(nn.Module):
    """Embeddings of each layout of tiles; never sharded."""

    def __init__(self, config: VisionConfig, rows_of_layout: int, placement: Placement) -> None:
        super().__init__()
        num_layouts = 1 + len(tile_layouts(config.max_num_tiles))
        shape = (num_layouts, rows_of_layout * config.hidden_size)
        self.hidden_size = config.hidden_size
        self.weight = Weight(shape, {"": Part.whole(*shape)}, placement.dtype, placement.device)

    def forward(self, rows: Tensor) -> Tensor:
        """LongTensor [n] -> [n, d]."""
        return F.embedding(rows, self.weight.view(-1, self.hidden_size))


def _single(placement: Placement) -> Weight:
    """A gate: one number."""
    return Weight((1,), {"": Part.whole(1)}, placement.dtype, placement.device)


class _TileEmbedding(nn.Module):
    """One embedding for each tile of each layout, behind a gate."""

    def __init__(self, config: VisionConfig, placement: Placement) -> None:
        super().__init__()
        self.embedding = _Table(config, config.max_num_tiles, placement)
        self.gate = _single(placement)

    def forward(self, tiles: Tensor) -> Tensor:
        """LongTensor [n] -> [n, d]."""
        embedded: Tensor = self.gate.tanh() * self.embedding(tiles)
        return embedded


class _PositionEmbedding(nn.Module):
    """One embedding for each place within a tile, and one for each place of each layout; a gate weighs the two."""

    def __init__(self, config: VisionConfig, placement: Placement) -> None:
        super().__init__()
        self.seen_rows = config.canvas.seen_rows
        shape = (self.seen_rows, config.hidden_size)
        self.embedding = Weight(shape, {"": Part.whole(*shape)}, placement.dtype, placement.device)
        self.tile_embedding = _Table(config, config.max_num_tiles * self.seen_rows, placement)
        self.gate = _single(placement)

    def forward(self, tiles: Tensor, places: Tensor) -> Tensor:
        """LongTensors [n] -> [n, d]."""
        gate = self.gate.tanh()
        by_layout: Tensor = self.tile_embedding(tiles * self.seen_rows + places)
        return (1 - gate) * self.embedding[places] + gate * by_layout


class _Attention(nn.Module):
    """Attention over a whole unit."""

    def __init__(self, size: int, heads: HeadShard, placement: Placement) -> None:
        super().__init__()
        self.scale = heads.head_dim**-0.5
        self.kernel = placement.segment_kernel
        self.qkv_proj = QKVLinear(size, heads, bias=False, placement=placement)
        self.o_proj = RowParallelLinear(size, size, bias=False, placement=placement)

    def forward(self, x: Tensor, segments: Segments) -> Tensor:
        """[n, d] -> [n, d]."""
        q, k, v = self.qkv_proj(x)
        out: Tensor = self.o_proj(segment_attention(q, k, v, segments, self.scale, self.kernel).flatten(1))
        return out


class _Layer(nn.Module):
    """One layer of the tower."""

    def __init__(self, config: VisionConfig, heads: HeadShard, placement: Placement) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.norm_eps
        self.input_layernorm = LayerNorm(size, eps, placement)
        self.self_attn = _Attention(size, heads, placement)
        self.post_attention_layernorm = LayerNorm(size, eps, placement)
        self.mlp = PlainMLP(size, config.intermediate_size, size, "gelu", placement)

    def forward(self, x: Tensor, segments: Segments) -> Tensor:
        """[n, d] -> [n, d]."""
        x = x + self.self_attn(self.input_layernorm(x), segments)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class _GatedLayer(_Layer):
    """One global layer: what attention and MLP give is weighed by gates."""

    def __init__(self, config: VisionConfig, heads: HeadShard, placement: Placement) -> None:
        super().__init__(config, heads, placement)
        self.gate_attn = _single(placement)
        self.gate_ffn = _single(placement)

    def forward(self, x: Tensor, segments: Segments) -> Tensor:
        """[n, d] -> [n, d]."""
        x = x + self.gate_attn.tanh() * self.self_attn(self.input_layernorm(x), segments)
        out: Tensor = x + self.gate_ffn.tanh() * self.mlp(self.post_attention_layernorm(x))
        return out


class _Layers(nn.Module):
    """Layers under the name that checkpoints have for them."""

    def __init__(self, kind: type[_Layer], num_layers: int, config: VisionConfig, placement: Placement) -> None:
        super().__init__()
        heads = split_heads(config.attention_heads, config.attention_heads, config.head_dim, placement.group)
        self.layers = nn.ModuleList(kind(config, heads, placement) for _ in range(num_layers))


class Tower(nn.Module):
    """Encodes packed units, up to the width of the language model. It knows nothing of ranks beyond its group."""

    def __init__(
        self, config: VisionConfig, feature_size: int, normalisation: PixelNormalisation, placement: Placement
    ) -> None:
        super().__init__()
        self.config = config
        size = config.hidden_size
        kernel = (size, config.num_channels, config.patch_size, config.patch_size)
        self.patch_embedding = PatchEmbedding(kernel, normalisation, placement)
        self.class_embedding = Weight((size,), {"": Part.whole(size)}, placement.dtype, placement.device)
        self.pre_tile_positional_embedding = _TileEmbedding(config, placement)
        self.gated_positional_embedding = _PositionEmbedding(config, placement)
        self.layernorm_pre = LayerNorm(size, 1e-5, placement)
        self.transformer = _Layers(_Layer, config.num_hidden_layers, config, placement)
        self.layernorm_post = LayerNorm(size, 1e-5, placement)
        self.post_tile_positional_embedding = _TileEmbedding(config, placement)
        self.global_transformer = _Layers(_GatedLayer, config.num_global_layers, config, placement)
        width = config.vision_output_dim
        self.columns = slice(*shard_bounds(width, placement.group))
        self.projector = RowParallelLinear(width, feature_size, bias=True, placement=placement)

    def encode(self, pixels: Tensor, pieces: Sequence[Piece], shared: SharedRows | None) -> Stages:
        """uint8 [rows with pixels, bytes of a patch] -> [n, feature size]."""
        config = self.config
        rows = _RowPlaces.of(pieces, config.canvas, pixels.device)
        segments = _segments(pieces, shared, config.canvas)
        x = self._embed(pixels, rows)
        # What the projector reads: the last states, then element by element those of the layers that are asked for.
        states = x.new_empty(x.shape[0], config.vision_output_dim)
        last, inner = states.split([config.hidden_size, config.vision_output_dim - config.hidden_size], dim=1)
        asked = config.intermediate_layers_indices
        by_layer = inner.unflatten(1, (config.hidden_size, len(asked)))
        for index, layer in enumerate(self.transformer.layers):
            x = layer(x, segments)
            if index in asked:
                by_layer[..., asked.index(index)] = x
            yield
        x = self.layernorm_post(x) + self.post_tile_positional_embedding(rows.tiles)
        for layer in self.global_transformer.layers:
            x = layer(x, segments)
            yield
        last.copy_(x)
        features: Tensor = self.projector(states[:, self.columns])
        return features

    def _embed(self, pixels: Tensor, rows: _RowPlaces) -> Tensor:
        """[n, d]; the patches of tiles that are padding have no pixels, and rows that fill up tiles are zero."""
        patches: Tensor = self.patch_embedding(pixels)
        x = patches.new_zeros(len(rows.places), self.config.hidden_size)
        x[rows.with_pixels] = patches
        x[rows.patches] += self.pre_tile_positional_embedding(rows.tiles[rows.patches])
        x[rows.classes] = self.class_embedding
        inside = rows.inside
        positions = self.gated_positional_embedding(rows.tiles[inside], rows.places[inside])
        x[inside] = self.layernorm_pre(x[inside] + positions)
        return x


def _segments(pieces: Sequence[Piece], shared: SharedRows | None, shape: CanvasShape) -> Segments:
    """Whole units, whose rows behind those of tiles with a picture are padding."""
    whole = [(piece.num_rows, shape.num_used(piece.grid) * shape.seen_rows) for piece in whole_pieces(pieces, shared)]
    return Segments.padded(((length, max(0, length - num_core)) for length, num_core in whole), shared)


# --------------------------------------------------------------------------------------------------------------------
# Language model


class _Seen(NamedTuple):
    """Rows of a batch that attend to units, and what to.

    Attributes:
        rows: LongTensor [m], those that come before the first image of their prompt last.
        num_behind: how many of them do not.
        runs: what neighbours among them attend to.
    """

    rows: Tensor
    num_behind: int
    runs: Sequence[SeenUnits]

    @classmethod
    def of(cls, seen: Sequence[SeenUnits], device: torch.device) -> _Seen:
        runs = sorted(seen, key=lambda run: run.is_before)
        rows = torch.cat([torch.arange(run.start, run.stop) for run in runs])
        return cls(rows.to(device), sum(run.stop - run.start for run in runs if not run.is_before), runs)

    def memories(self, layer: int) -> list[Memory]:
        """Keys and values in one layer, by its number among those that attend to units."""
        return [Memory(run.stop - run.start, *_keys_values(run, layer)) for run in self.runs]


def _keys_values(run: SeenUnits, layer: int) -> tuple[Tensor, Tensor]:
    """Of all units that a run sees; rows before the first image see what is padding as well."""
    parts = [unit.kept[layer, :, : None if run.is_before else unit.num_core] for unit in run.units]
    keys, values = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
    return keys, values


class _CrossLayer(nn.Module):
    """A layer that attends to units instead of text; what attention and MLP give is weighed by gates."""

    def __init__(self, config: TextConfig, heads: HeadShard, placement: Placement) -> None:
        super().__init__()
        size, eps = config.hidden_size, config.rms_norm_eps
        self.input_layernorm = RMSNorm(size, eps, placement)
        self.cross_attn = CrossAttention(size, heads, eps, placement)
        self.cross_attn_attn_gate = _single(placement)
        self.post_attention_layernorm = RMSNorm(size, eps, placement)
        self.mlp = GatedMLP(size, config.intermediate_size, bias=False, placement=placement)
        self.cross_attn_mlp_gate = _single(placement)

    def forward(self, x: Tensor, memories: Sequence[Memory], num_behind: int) -> Tensor:
        """[m, d] -> [m, d]; rows from ``num_behind`` on come before the first image and have no MLP."""
        x = x + self.cross_attn_attn_gate.tanh() * self.cross_attn(self.input_layernorm(x), memories)
        behind = x[:num_behind]
        behind += self.cross_attn_mlp_gate.tanh() * self.mlp(self.post_attention_layernorm(behind))
        return x


class TextModel(nn.Module):
    """Llama with layers of cross-attention, which rows that see no unit pass by."""

    def __init__(self, config: TextConfig, placement: Placement) -> None:
        super().__init__()
        self.frequencies = _frequencies(config, placement.device)
        self.heads = split_heads(
            config.num_attention_heads, config.num_key_value_heads, config.head_dim, placement.group
        )
        shape = DecoderShape(
            config.hidden_size, config.intermediate_size, self.heads, config.rms_norm_eps, qkv_bias=False
        )
        self.embed_tokens = VocabEmbedding(config.vocab_size + _NUM_INPUT_ONLY, config.hidden_size, placement)
        self.layers = nn.ModuleList(
            _CrossLayer(config, self.heads, placement)
            if index in config.cross_attention_layers
            else DecoderLayer(shape, placement)
            for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, placement)

    @property
    def cross_layers(self) -> list[_CrossLayer]:
        """Those that attend to units, in order."""
        return [layer for layer in self.layers if isinstance(layer, _CrossLayer)]

    def keep(self, features: Tensor, num_rows: int) -> Tensor:
        """Keys and values of a unit's first rows in every layer of cross-attention.

        Args:
            features: [rows, d].
            num_rows: those that text may attend to.

        Returns:
            [layers, 2, num_rows, Hkv, D], filled layer by layer.
        """
        layers, heads = self.cross_layers, self.heads
        kept = features.new_empty(len(layers), 2, num_rows, heads.num_kv_heads, heads.head_dim)
        for layer, (keys, values) in zip(layers, kept, strict=True):
            layer.cross_attn.write_keys_values(features[:num_rows], keys, values)
        return kept

    def forward(
        self,
        embeds: Tensor,
        positions: Tensor,
        caches: Sequence[KVCache],
        batch: PagedBatch,
        seen: Sequence[SeenUnits],
        rows: Tensor | None,
    ) -> Tensor:
        """[n, d] and LongTensor [1, n] -> [n, d], or [m, d] of ``rows``."""
        rotation = text_rotation(positions[0], self.frequencies, "halves").to(embeds.dtype)
        own = _Seen.of(seen, embeds.device) if seen else None
        next_cache = iter(caches)
        num_crossed = 0
        x = embeds
        for layer in self.layers:
            if not isinstance(layer, _CrossLayer):
                x = layer(x, rotation, next(next_cache), batch, rows if layer is self.layers[-1] else None)
                continue
            if own is not None:
                x = x.index_copy(0, own.rows, layer(x[own.rows], own.memories(num_crossed), own.num_behind))
            num_crossed += 1
        if isinstance(self.layers[-1], _CrossLayer):
            x = rows_of(x, rows)
        normed: Tensor = self.norm(x)
        return normed


def _frequencies(config: TextConfig, device: torch.device) -> Tensor:
    frequencies = inverse_frequencies(config.head_dim, config.rope_theta, device)
    scaling = config.rope_scaling
    if scaling is None:
        return frequencies
    return stretched_frequencies(frequencies, LongContext(*msgspec.structs.astuple(scaling)))


# --------------------------------------------------------------------------------------------------------------------
# Joined model


class CrossModel(nn.Module):
    """A tower, and a language model that attends to its features; see ``VisionLanguageModel``."""

    def __init__(self, config: Config, context: BuildContext) -> None:
        super().__init__()
        text, vision = config.text, config.vision
        self.num_layers = text.num_hidden_layers - len(text.cross_attention_layers)
        self.head_dim = text.head_dim
        self.hidden_size = text.hidden_size
        self.num_seen_rows = vision.max_num_tiles * vision.canvas.seen_rows
        self.visual = Tower(vision, text.hidden_size, context.normalisation, context.vision)
        self.language_model = TextModel(text, context.text)
        self.num_heads = self.language_model.heads.num_heads
        self.num_kv_heads = self.language_model.heads.num_kv_heads
        self.chunk_sizes: tuple[int | None, ...] = (None,)
        self.tying = config.tying
        self.lm_head = OutputProjection(text.vocab_size, text.hidden_size, context.text)

    def embed_tokens(self, ids: Tensor) -> Tensor:
        """LongTensor [n] -> [n, d]."""
        rows: Tensor = self.language_model.embed_tokens(ids)
        return rows

    def encode_vision(self, pixels: Tensor, pieces: Sequence[Piece], shared: SharedRows | None = None) -> Stages:
        """uint8 [rows with pixels, bytes of a patch] -> [rows of all pieces, feature size]."""
        return self.visual.encode(pixels, pieces, shared)

    def table_tower(self) -> None:
        """None: what is launched depends on the tiles of each picture."""

    def keep(self, features: Tensor) -> Tensor:
        """Keys and values in this rank's heads, without the rows that fill up tiles."""
        return self.language_model.keep(features, self.num_seen_rows)

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
        """[n, d] and LongTensor [1, n] -> [n, d]."""
        assert deep is None
        hidden: Tensor = self.language_model(embeds, positions, caches, batch, seen, rows)
        return hidden

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """[m, d] -> float32 [m, vocabulary]."""
        logits: Tensor = self.lm_head(hidden)
        return logits

    def rope_positions(self, num_tokens: int, items: Sequence[MediaItem]) -> RopePositions:
        """Tokens count on one by one."""
        del items
        return RopePositions(np.arange(num_tokens)[None], 0)

    def finish_loading(self) -> None:
        """Fold the normalisation of pixels into the patch embedding."""
        self.visual.patch_embedding.fold_normalisation()
        settle_weight_tying(self.tying, self.lm_head, self.language_model.embed_tokens)


# --------------------------------------------------------------------------------------------------------------------
# Processor, names of weights, entry


def read_facts(config: Config, processor: dict[str, Any], generation: dict[str, Any]) -> ModelFacts:
    """Facts for the processes without tensors."""
    text, vision = config.text, config.vision
    num_inputs = text.vocab_size + _NUM_INPUT_ONLY
    return ModelFacts(
        model_type="mllama",
        vocab_size=text.vocab_size,
        max_position_embeddings=text.max_position_embeddings,
        eos_token_ids=known_token_ids(eos_token_ids(generation, text.eos_token_id), text.vocab_size),
        image_token_id=config.image_token_id,
        media_token_ids=known_token_ids(config.image_token_id, num_inputs),
        processor=_read_processor(processor, vision),
        encoder=_encoder_shape(vision, text.hidden_size),
        num_cross_layers=len(text.cross_attention_layers),
        num_input_only=_NUM_INPUT_ONLY,
    )


def _read_processor(processor: dict[str, Any], vision: VisionConfig) -> CanvasProcessorSpec:
    where = "image processor settings"
    expected: dict[str, Any] = {
        "do_resize": True,
        "do_pad": True,
        "resample": 2,  # bilinear
        "max_image_tiles": vision.max_num_tiles,
        "size": {"height": vision.image_size, "width": vision.image_size},
    }
    for key, value in expected.items():
        require_setting(where, key, processor.get(key, value), [value])
    return CanvasProcessorSpec(vision.patch_size, 1, 1, vision.canvas)


def _encoder_shape(vision: VisionConfig, feature_size: int) -> EncoderShape:
    num_layers = vision.num_hidden_layers + vision.num_global_layers
    return EncoderShape(
        hidden_size=vision.hidden_size,
        intermediate_size=vision.intermediate_size,
        mlp_matrices=2,
        num_layers=num_layers,
        full_attention_layers=tuple(range(num_layers)),
        num_heads=vision.attention_heads,
        feature_size=feature_size,
        outer_flops=2 * (vision.hidden_size * vision.patch_bytes + vision.vision_output_dim * feature_size),
        canvas=vision.canvas,
    )


def check_sharding(config: Config, text_size: int, vision_size: int) -> None:
    """Refuse numbers of ranks that the heads do not divide by."""
    check_text_heads(config.text.num_attention_heads, config.text.num_key_value_heads, text_size)
    check_vision_heads(config.vision.attention_heads, vision_size)


# The hub's checkpoints have parts side by side, transformers 5 has them below "model.".
_RENAMES = (
    (r"^(?:model\.)?vision_model\.", "visual."),
    (r"^(?:model\.)?multi_modal_projector\.", "visual.projector."),
    (r"^language_model\.lm_head\.", "lm_head."),
    (r"^(?:language_model\.model|model\.language_model)\.", "language_model."),
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
    build=CrossModel,
    module_name=module_name,
)

"""Qwen2.5-VL: a tower with windowed attention, and Qwen2 with positions in time, height and width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import repeat
from typing import Any, TypeAlias

import msgspec

from chiasm.layers.mlp import GatedMLP
from chiasm.layers.norm import RMSNorm
from chiasm.models import qwen2
from chiasm.models.blocks import read_normalisation, require_positive, require_setting
from chiasm.models.entry import BuildContext, ModelEntry
from chiasm.models.joined import JoinedModel, TowerConfig, check_sharding
from chiasm.ops.segments import Segments, SharedRows
from chiasm.schema.facts import ModelFacts
from chiasm.vision.tables import PassTables
from chiasm.vision.units import Piece, runs_between


class VisionConfig(TowerConfig, frozen=True):
    """The tower."""

    hidden_act: str = "silu"
    intermediate_size: int = 3420
    tokens_per_second: float = 4
    window_size: int = 112
    fullatt_block_indexes: tuple[int, ...] = (7, 15, 23, 31)

    @property
    def window_blocks(self) -> int:
        """Side of an attention window in merge blocks."""
        return self.window_size // self.spatial_merge_size // self.patch_size


Config: TypeAlias = qwen2.Config[VisionConfig]


def parse_config(raw: dict[str, Any]) -> Config:
    """Read ``config.json`` in either form.

    Raises:
        UserError: for values that are not supported or contradict each other.
    """
    config = qwen2.read_whole_config(raw, VisionConfig)
    vision = config.vision
    require_setting("vision_config", "hidden_act", vision.hidden_act, ["silu"])
    require_setting("vision_config", "out_hidden_size", vision.out_hidden_size, [config.text.hidden_size])
    require_positive("vision_config", vision, ("window_blocks",))
    return config


class Tower(qwen2.Tower):
    """Most of its layers attend within windows."""

    def __init__(self, config: VisionConfig, context: BuildContext) -> None:
        def make_mlp() -> GatedMLP:
            return GatedMLP(config.hidden_size, config.intermediate_size, bias=True, placement=context.vision)

        super().__init__(config, context, RMSNorm, make_mlp, config.window_blocks)
        self.full_layers = config.fullatt_block_indexes

    def tables(self, pieces: Sequence[Piece], shared: SharedRows | None) -> PassTables:
        """Positions [n, 2], whole units and windows."""
        rows, [units] = super().tables(pieces, shared)
        return PassTables(rows, (units, Segments.from_lengths(self._window_lengths(pieces))))

    def layer_segments(self, layer: int, segments: Sequence[Segments]) -> Segments:
        """Within what a layer's rows attend."""
        units, windows = segments
        return units if layer in self.full_layers else windows

    def _window_lengths(self, pieces: Sequence[Piece]) -> Iterator[int]:
        """Rows of each window, in the order of the pieces."""
        for piece in pieces:
            for length, count in runs_between(
                piece.grid, self.merge_size, self.window_blocks, piece.start, piece.stop
            ):
                yield from repeat(length, count)


def build(config: Config, context: BuildContext) -> JoinedModel:
    """The unfilled model of one rank; positions in a video follow its frame rate."""
    vision, text = Tower(config.vision, context), qwen2.TextModel(config.text, context.text)
    return JoinedModel(config, vision, text, context, config.vision.tokens_per_second)


def read_facts(config: Config, processor: dict[str, Any], generation: dict[str, Any]) -> ModelFacts:
    """Facts for the processes without tensors."""
    vision = config.vision
    encoder = msgspec.structs.replace(
        qwen2.encoder_shape(vision, vision.intermediate_size, mlp_matrices=3),
        full_attention_layers=tuple(index for index in range(vision.depth) if index in vision.fullatt_block_indexes),
        window_blocks=vision.window_blocks,
    )
    return qwen2.make_facts("qwen2_5_vl", config, processor, generation, encoder)


MODEL = ModelEntry(
    parse_config=parse_config,
    facts=read_facts,
    normalisation=read_normalisation,
    check_sharding=check_sharding,
    build=build,
    module_name=qwen2.module_name,
    video=qwen2.read_video,
)

"""Qwen2-VL: a tower with full attention in every layer, and Qwen2 with positions in time, height and width."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from chiasm.layers.mlp import PlainMLP
from chiasm.layers.norm import LayerNorm
from chiasm.models import qwen2
from chiasm.models.blocks import read_normalisation, require_setting
from chiasm.models.entry import BuildContext, ModelEntry
from chiasm.models.joined import JoinedModel, TowerConfig, check_sharding
from chiasm.schema.facts import ModelFacts


class VisionConfig(TowerConfig, frozen=True):
    """The tower. What others call the size of its output is ``hidden_size`` in this one's file."""

    hidden_size: int = msgspec.field(default=1280, name="embed_dim")
    out_hidden_size: int = msgspec.field(default=3584, name="hidden_size")
    hidden_act: str = "quick_gelu"
    mlp_ratio: int = 4

    @property
    def intermediate_size(self) -> int:
        """Width inside the MLP."""
        return self.hidden_size * self.mlp_ratio


Config: TypeAlias = qwen2.Config[VisionConfig]


def parse_config(raw: dict[str, Any]) -> Config:
    """Read ``config.json`` in either form.

    Raises:
        UserError: for values that are not supported or contradict each other.
    """
    config = qwen2.read_whole_config(raw, VisionConfig)
    require_setting("vision_config", "hidden_act", config.vision.hidden_act, ["quick_gelu"])
    require_setting("vision_config", "hidden_size", config.vision.out_hidden_size, [config.text.hidden_size])
    return config


def build(config: Config, context: BuildContext) -> JoinedModel:
    """The unfilled model of one rank."""
    vision = config.vision

    def make_mlp() -> PlainMLP:
        return PlainMLP(vision.hidden_size, vision.intermediate_size, vision.hidden_size, "quick", context.vision)

    tower = qwen2.Tower(vision, context, LayerNorm, make_mlp)
    return JoinedModel(config, tower, qwen2.TextModel(config.text, context.text), context)


def read_facts(config: Config, processor: dict[str, Any], generation: dict[str, Any]) -> ModelFacts:
    """Facts for the processes without tensors."""
    encoder = qwen2.encoder_shape(config.vision, config.vision.intermediate_size, mlp_matrices=2)
    return qwen2.make_facts("qwen2_vl", config, processor, generation, encoder)


MODEL = ModelEntry(
    parse_config=parse_config,
    facts=read_facts,
    normalisation=read_normalisation,
    check_sharding=check_sharding,
    build=build,
    module_name=qwen2.module_name,
    video=qwen2.read_video,
)

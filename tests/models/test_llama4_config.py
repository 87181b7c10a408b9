"""Reading the JSON files of Llama 4 checkpoints, and weights that are not what they say."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama4.configuration_llama4 import Llama4Config, Llama4TextConfig

from chiasm.errors import UserError
from chiasm.models.llama4 import MODEL, module_name, parse_config
from chiasm.models.loader import load_model
from chiasm.models.registry import open_checkpoint
from chiasm.ops.rope import LongContext, inverse_frequencies, stretched_frequencies
from chiasm.schema.facts import EncoderShape, TileForm
from chiasm.schema.media import TileProcessorSpec
from tests.checkpoints.common import edit_json, make_tokenizer
from tests.checkpoints.llama4 import LLAMA4_IMAGE_PROCESSOR, LLAMA4_SPECIAL_TOKENS, llama4_config, save_llama4
from tests.invariants import CPU

TOKENIZER = make_tokenizer(LLAMA4_SPECIAL_TOKENS)
RAW = llama4_config(TOKENIZER, is_interleaved=False)


def changed(where: str, changes: dict[str, Any]) -> dict[str, Any]:
    raw = copy.deepcopy(RAW)
    (raw if where == "config" else raw[where]).update(changes)
    return raw


def test_missing_fields_take_the_defaults_of_transformers() -> None:
    """All but the tower's, whose sizes there do not go together."""
    vision = {"hidden_size": 1408, "vision_output_dim": 4096}
    ours = parse_config({"model_type": "llama4", "vision_config": vision})
    theirs = Llama4Config(vision_config=vision)
    elsewhere = ("rope_theta", "long_context", "eos_token_id")
    for name in ours.text.__struct_fields__:
        if name not in elsewhere:
            reference = getattr(theirs.text_config, name)
            assert getattr(ours.text, name) == (tuple(reference) if isinstance(reference, list) else reference), name
    assert ours.text.rope_theta == theirs.text_config.rope_parameters["rope_theta"]
    names = {"depth": "num_hidden_layers", "num_heads": "num_attention_heads", "out_hidden_size": "vision_output_dim"}
    for name in (
        "hidden_size",
        "intermediate_size",
        "image_size",
        "patch_size",
        "norm_eps",
        "projector_input_dim",
        *names,
    ):
        assert getattr(ours.vision, name) == getattr(theirs.vision_config, names.get(name, name)), name
    assert ours.vision.rope_parameters["rope_theta"] == theirs.vision_config.rope_parameters["rope_theta"]
    assert ours.joined.image_token_id == theirs.image_token_id


@pytest.mark.parametrize(
    "text",
    [
        {"num_hidden_layers": 9, "interleave_moe_layer_step": 3, "no_rope_layer_interval": 2},
        {"num_hidden_layers": 4, "moe_layers": [], "no_rope_layers": [1, 1, 0, 1]},
        {"num_hidden_layers": 4, "moe_layers": [2], "attention_chunk_size": None},
        {"num_hidden_layers": 2, "layer_types": ["full_attention", "chunked_attention"]},
    ],
)
def test_layers_are_those_of_transformers(text: dict[str, Any]) -> None:
    vision = {"hidden_size": 1408, "vision_output_dim": 4096}
    ours = parse_config({"model_type": "llama4", "text_config": text, "vision_config": vision}).text
    theirs = Llama4TextConfig(**text)
    layers = range(ours.num_hidden_layers)
    assert list(ours.moe_layers) == theirs.moe_layers
    assert [ours.is_rotated(layer) for layer in layers] == [bool(each) for each in theirs.no_rope_layers]
    chunked = ["chunked_attention" if ours.chunk_size(layer) else "full_attention" for layer in layers]
    assert chunked == theirs.layer_types


def test_an_early_checkpoint_tells_of_temperatures_with_a_number() -> None:
    assert parse_config(changed("text_config", {"attn_temperature_tuning": 4})).text.attn_temperature_tuning is True
    assert parse_config(changed("text_config", {"attn_temperature_tuning": 0})).text.attn_temperature_tuning is False


@pytest.mark.parametrize(
    ("where", "changes", "match"),
    [
        ("text_config", {"hidden_act": "gelu"}, "hidden_act='gelu' .* only 'silu'"),
        ("text_config", {"attention_bias": True}, "attention_bias=True .* only False"),
        ("text_config", {"rope_scaling": {"rope_type": "yarn"}}, "rope_type='yarn' .* only 'default' or 'llama3'"),
        ("text_config", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "lacks low_freq_factor, high_freq"),
        ("text_config", {"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ("text_config", {"num_experts_per_tok": 7}, "num_experts_per_tok=7 .* num_local_experts=6"),
        ("text_config", {"no_rope_layers": [1, 0]}, "no_rope_layers .* has 2 entries for 3 layers"),
        ("text_config", {"layer_types": ["sliding_attention"] * 3}, "layer_types='sliding_attention'"),
        ("text_config", {"attention_chunk_size": 0}, "attention_chunk_size=0"),
        ("text_config", {"moe_layers": [0, 3]}, "moe_layers .* names layer 3, of 3"),
        ("text_config", {"floor_scale": 0}, "floor_scale=0"),
        ("vision_config", {"hidden_act": "quick_gelu"}, "hidden_act='quick_gelu' .* only 'gelu'"),
        ("vision_config", {"pixel_shuffle_ratio": 0.25}, r"pixel_shuffle_ratio=0\.25 .* only 0\.5"),
        ("vision_config", {"intermediate_size": 90}, "intermediate_size=90 .* only 384"),
        ("vision_config", {"projector_input_dim": 90}, "projector_input_dim=90 .* only 100"),
        ("vision_config", {"vision_output_dim": 90}, "vision_output_dim=90 .* only 100"),
        ("vision_config", {"vision_feature_select_strategy": "full"}, "vision_feature_select_strategy='full'"),
        ("vision_config", {"multi_modal_projector_bias": True}, "multi_modal_projector_bias=True"),
        ("vision_config", {"num_attention_heads": 48}, "hidden_size=96 .* num_attention_heads=48"),
        ("vision_config", {"image_size": 98}, "image_size=98 .* merge block's 28 pixels"),
    ],
)
def test_settings_that_are_not_honoured_are_refused(where: str, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        parse_config(changed(where, changes))
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"size": {"height": 336, "width": 336}}, r"size\.height=336 .* only 84"),
        ({"resample": 3}, "resample=3 .* only 2"),
        ({"do_resize": False}, "do_resize=False"),
        ({"max_patches": "9"}, "max_patches='9' .* whole number"),
        ({"max_patches": 0}, "max_patches=0 .* whole number"),
    ],
)
def test_image_processors_that_are_not_honoured_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match):
        MODEL.facts(parse_config(RAW), {**LLAMA4_IMAGE_PROCESSOR, **changes}, {})


def test_facts_tell_of_tiles_and_of_the_tower(tmp_path: Path) -> None:
    facts = open_checkpoint(save_llama4(tmp_path).folder).facts
    ids = {token: TOKENIZER.token_to_id(token) for token in LLAMA4_SPECIAL_TOKENS}
    assert facts.processor == TileProcessorSpec(14, 2, 1, 84, 6)
    assert facts.encoder == EncoderShape(
        hidden_size=96,
        intermediate_size=384,
        mlp_matrices=2,
        num_layers=3,
        full_attention_layers=(0, 1, 2),
        num_heads=12,
        feature_size=64,
        merge_size=2,
        outer_flops=2 * (96 * 588 + (100 * (384 + 100) + 100 * 64) // 4),
        can_cut_rows=False,
        tile_side=6,
    )
    names = (
        "<|image|>",
        "<|image_start|>",
        "<|tile_x_separator|>",
        "<|tile_y_separator|>",
        "<|image|>",
        "<|image_end|>",
    )
    assert facts.tiles == TileForm(*(ids[name] for name in names))
    assert facts.image_token_id == ids["<|patch|>"]
    assert set(facts.media_token_ids) == {ids[name] for name in (*names, "<|patch|>")}
    assert facts.max_unit_tokens == 9


@pytest.mark.parametrize("has_file", [True, False])
def test_a_tokenizer_without_the_tokens_of_tiles_is_refused(tmp_path: Path, has_file: bool) -> None:
    folder = save_llama4(tmp_path).folder
    if has_file:
        edit_json(folder / "tokenizer.json", lambda file: file.update(added_tokens=file["added_tokens"][:-3]))
    else:
        (folder / "tokenizer.json").unlink()
    match = r"tokenizer\.json of the checkpoint lacks <\|image\|>, <\|tile_y" if has_file else "has no tokenizer"
    with pytest.raises(UserError, match=match):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    ("factor", "low", "high", "original"), [(16.0, 1.0, 1.0, 8192), (8.0, 1.0, 4.0, 8192), (4.0, 2.0, 3.0, 64)]
)
def test_stretched_frequencies_equal_hugging_face(factor: float, low: float, high: float, original: int) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": factor,
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }
    config = Llama4TextConfig(rope_parameters=rope)
    expected, _ = ROPE_INIT_FUNCTIONS["llama3"](config, CPU)
    computed = stretched_frequencies(
        inverse_frequencies(128, 500000.0, CPU), LongContext(factor, low, high, original)
    )
    torch.testing.assert_close(computed, expected, rtol=1e-6, atol=0)


# --------------------------------------------------------------------------------------------------------------------
# Query, key and value of the tower: three tensors on disk, one matrix in memory

KEY = "vision_model.model.layers.1.self_attn.k_proj.weight"


def change_weights(folder: Path, changes: dict[str, Tensor | None]) -> None:
    tensors = {**load_file(folder / "model.safetensors"), **changes}
    save_file({name: each for name, each in tensors.items() if each is not None}, folder / "model.safetensors")


def refuse(folder: Path, match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        load_model(folder, dtype=torch.float32, device=CPU)
    assert caught.value.param == "model"


@pytest.mark.parametrize("part", ["q", "k", "v"])
@pytest.mark.parametrize("kind", ["weight", "bias"])
def test_a_missing_part_is_named(tmp_path: Path, part: str, kind: str) -> None:
    folder = save_llama4(tmp_path).folder
    name = KEY.replace("k_proj.weight", f"{part}_proj.{kind}")
    change_weights(folder, {name: None})
    refuse(folder, f"lacks 1 tensors of the model: {re.escape(module_name(name, parse_config(RAW)) or '')}")


def test_a_part_of_another_shape_is_named_with_both_shapes(tmp_path: Path) -> None:
    folder = save_llama4(tmp_path).folder
    change_weights(folder, {KEY: torch.ones(192, 96)})
    refuse(folder, rf"{re.escape(KEY)} has the shape \[192, 96\]; the config makes it \[96, 96\]")


def test_a_part_in_two_files_is_named(tmp_path: Path) -> None:
    folder = save_llama4(tmp_path).folder
    save_file({KEY: torch.ones(96, 96)}, folder / "more.safetensors")
    refuse(folder, f"the same tensor twice: {re.escape(KEY)} and {re.escape(KEY)}")


def test_a_part_beside_a_fused_one_is_named(tmp_path: Path) -> None:
    folder = save_llama4(tmp_path).folder
    fused = KEY.replace("k_proj", "qkv_proj")
    change_weights(folder, {fused: torch.ones(288, 96)})
    refuse(folder, f"1 tensors that the model doesn't have: {re.escape(fused)}")

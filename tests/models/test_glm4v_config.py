"""Reading the JSON files of GLM-4V checkpoints."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from chiasm.errors import UserError
from chiasm.models.glm4v import MODEL, MoeTextConfig, module_name, parse_config, read_video
from chiasm.schema.facts import EncoderShape
from tests.checkpoints.common import make_tokenizer
from tests.checkpoints.glm4v import GLM_CLASSES, GLM_IMAGE_PROCESSOR, GLM_SPECIAL_TOKENS, glm4v_config

TOKENIZER = make_tokenizer(GLM_SPECIAL_TOKENS)
RAW = {has_experts: glm4v_config(TOKENIZER, has_experts=has_experts) for has_experts in (False, True)}


def changed(has_experts: bool, where: str, changes: dict[str, Any]) -> dict[str, Any]:
    raw = copy.deepcopy(RAW[has_experts])
    raw[where].update(changes)
    return raw


@pytest.mark.parametrize("model_type", GLM_CLASSES)
def test_missing_fields_take_the_defaults_of_transformers(model_type: str) -> None:
    """All but the tables of positions, which have to fit a head."""
    text = {"partial_rotary_factor": 0.5, "head_dim": 128}
    ours = parse_config({"model_type": model_type, "text_config": text})
    theirs = GLM_CLASSES[model_type][0](text_config=text)
    pairs = ((ours.text, theirs.text_config), (ours.vision, theirs.vision_config), (ours.joined, theirs))
    elsewhere = ("rope_theta", "partial_rotary_factor", "mrope_section", "rope_parameters", "head_size")
    absent = ("attention_bias", "eos_token_id", "use_qk_norm", "num_nextn_predict_layers")
    for part, reference in pairs:
        for name in part.__struct_fields__:
            if name not in elsewhere and (name not in absent or part is ours.vision):
                assert getattr(part, name) == getattr(reference, name), name
    assert ours.text.rope_theta == theirs.text_config.rope_parameters["rope_theta"]
    assert ours.text.mrope_section == (8, 12, 12)


def test_half_of_a_head_is_rotated_with_experts_unless_it_is_told() -> None:
    text = {key: value for key, value in RAW[True]["text_config"].items() if key != "partial_rotary_factor"}
    assert parse_config({**RAW[True], "text_config": text}).text.rotary_dim == 8
    rope = {"partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0]}
    placed = {**text, "rope_scaling": None, "rope_parameters": rope}
    assert parse_config({**RAW[True], "text_config": placed}).text.rotary_dim == 4


@pytest.mark.parametrize(
    ("has_experts", "where", "changes", "match"),
    [
        (False, "text_config", {"hidden_act": "gelu"}, "hidden_act='gelu' .* only 'silu'"),
        (False, "text_config", {"rope_scaling": {"rope_type": "yarn"}}, "rope_type='yarn'"),
        (False, "text_config", {"partial_rotary_factor": 1.0}, r"mrope_section=\[1, 1, 2\] .* rotated of a head, 8"),
        (False, "text_config", {"num_key_value_heads": 3}, "num_key_value_heads=3"),
        (False, "vision_config", {"attention_bias": True}, "attention_bias=True .* only False"),
        (False, "vision_config", {"out_hidden_size": 32}, "out_hidden_size=32 .* only 128"),
        (False, "vision_config", {"num_heads": 5}, "hidden_size=64 .* num_heads=5"),
        (False, "vision_config", {"image_size": 10}, "table_side=0"),
        (False, "text_config", {"partial_rotary_factor": float("nan")}, r"partial_rotary_factor=nan .* in \(0, 1\]"),
        (False, "vision_config", {"spatial_merge_size": 0}, r"spatial_merge_size=0 .* in \[1, 16777216\]"),
        (False, "text_config", {"num_hidden_layers": 10**18}, r"num_hidden_layers=10+ .* in \[1, 16777216\]"),
        (True, "text_config", {"n_group": 5}, "n_group=5"),
        (True, "text_config", {"n_group": 12, "topk_group": 8}, "n_group=12 .* less than two of n_routed_experts=12"),
        (True, "text_config", {"topk_group": 5}, "topk_group=5"),
        (True, "text_config", {"num_experts_per_tok": 7}, "num_experts_per_tok=7 .* the 6 experts"),
        (True, "text_config", {"n_shared_experts": 0}, "n_shared_experts=0"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_can_not_be_honoured_is_refused_by_name(
    has_experts: bool, where: str, changes: dict[str, Any], match: str
) -> None:
    with pytest.raises(UserError, match=match) as caught:
        parse_config(changed(has_experts, where, changes))
    assert caught.value.param == "model"


def test_facts_of_a_checkpoint() -> None:
    facts = MODEL.facts(parse_config(RAW[False]), GLM_IMAGE_PROCESSOR, {})
    names = ("begin_of_image", "end_of_image", "image", "begin_of_video", "end_of_video", "video")
    assert facts.media_token_ids == tuple(TOKENIZER.token_to_id(f"<|{name}|>") for name in names)
    assert facts.image_token_id == TOKENIZER.token_to_id("<|image|>")
    assert facts.eos_token_ids == tuple(TOKENIZER.token_to_id(name) for name in ("<|endoftext|>", "<|user|>"))
    assert (facts.processor.min_pixels, facts.processor.max_pixels) == (12544 // 2, 602112 // 2)
    assert facts.processor.enlarges_thin
    assert facts.encoder == EncoderShape(
        hidden_size=64,
        intermediate_size=128,
        mlp_matrices=3,
        num_layers=3,
        full_attention_layers=(0, 1, 2),
        num_heads=8,
        feature_size=128,
        merge_size=2,
        outer_flops=2 * (64 * (1176 + 128) + 128 * (128 + 3 * 90) // 4),
    )


@pytest.mark.parametrize(
    ("settings", "is_new"),
    [
        ({"image_processor_type": "Glm46VImageProcessor"}, True),
        ({"image_processor_type": "Glm46VImageProcessorFast"}, True),
        ({"video_processor_type": "Glm46VVideoProcessor"}, True),
        ({"video_processor_type": "Glm4vVideoProcessor", "image_processor_type": "Glm46VImageProcessor"}, False),
        ({"image_processor_type": "Glm4vImageProcessor"}, False),
        ({"image_processor_type": None}, False),
        ({}, False),
    ],
)
@pytest.mark.parametrize("has_experts", [False, True])
def test_the_processors_name_tells_how_videos_are_taken(
    settings: dict[str, Any], is_new: bool, has_experts: bool
) -> None:
    video = read_video(parse_config(glm4v_config(TOKENIZER, has_experts=has_experts)), settings)
    assert video.slices is not None
    assert video.slices.after[1:] == (("{seconds:.1f} seconds",) if is_new else ("{whole_seconds}",))
    assert video.processor.sampling == ("duration" if is_new else "seconds")


def test_layers_that_guess_at_further_tokens_are_left_out() -> None:
    config = parse_config(changed(True, "text_config", {"num_nextn_predict_layers": 1}))
    assert isinstance(config.text, MoeTextConfig)
    name = "model.language_model.layers.{}.mlp.gate.weight"
    assert [module_name(name.format(layer), config) is None for layer in (2, 3, 4)] == [False, True, False]

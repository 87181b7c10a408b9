"""Reading the JSON files of Qwen2.5-VL checkpoints."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from chiasm.errors import UserError
from chiasm.models.blocks import block_positions
from chiasm.models.qwen2_5_vl import Config, parse_config, read_facts, read_normalisation
from chiasm.models.registry import open_checkpoint
from chiasm.schema.facts import EncoderShape
from tests.checkpoints.common import IMAGE_PROCESSOR, SavedModel, make_tokenizer
from tests.checkpoints.qwen2 import qwen2_5_vl_config

FLAT = qwen2_5_vl_config(make_tokenizer())


def nested(raw: dict[str, Any]) -> dict[str, Any]:
    """The same config as transformers writes it."""
    return json.loads(Qwen2_5_VLConfig(**json.loads(json.dumps(raw))).to_json_string(use_diff=False))


def test_flat_and_nested_form_are_read_alike() -> None:
    flat, other = parse_config(FLAT), parse_config(nested(FLAT))
    assert flat.text.mrope_section == (1, 1, 2)
    assert flat.text.rope_theta == 1e6
    assert (flat.text.head_dim, flat.vision.window_blocks) == (8, 4)
    for name in ("hidden_size", "intermediate_size", "rms_norm_eps", "mrope_section", "rope_theta", "eos_token_id"):
        assert getattr(flat.text, name) == getattr(other.text, name)
    assert flat.joined == other.joined
    assert flat.vision.fullatt_block_indexes == other.vision.fullatt_block_indexes


def test_missing_fields_take_the_defaults_of_transformers() -> None:
    """All but the sizes that have to fit each other."""
    given = {"text_config": {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4}}
    ours, theirs = parse_config({"model_type": "qwen2_5_vl", **given}), Qwen2_5_VLConfig(**given)
    for part, reference in (
        (ours.text, theirs.text_config),
        (ours.vision, theirs.vision_config),
        (ours.joined, theirs),
    ):
        for name in part.__struct_fields__:
            if name not in ("rope_theta", "mrope_section", "layer_types", "vision_token_id", "rope_parameters"):
                value = getattr(reference, name)
                assert getattr(part, name) == (tuple(value) if isinstance(value, list) else value), name
    assert ours.text.rope_theta == theirs.text_config.rope_parameters["rope_theta"]


def test_null_means_missing() -> None:
    raw = {**FLAT, "num_key_value_heads": None, "tie_word_embeddings": None, "rms_norm_eps": None}
    config = parse_config(raw)
    assert config.text.num_key_value_heads == 8
    assert config.tying.setting is False
    assert config.text.rms_norm_eps == 1e-5


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"use_sliding_window": True}, "use_sliding_window=True .* only False"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types='sliding_attention'"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' .* only 'silu'"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope_type='yarn'"),
        ({"rope_scaling": {"type": "mrope", "mrope_section": [4, 4, 4]}}, r"mrope_section=\[4, 4, 4\]"),
        ({"num_attention_heads": 5}, "hidden_size=.* does not divide by num_attention_heads=5"),
        ({"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ({"hidden_size": "large"}, "text_config of the checkpoint's config: .*hidden_size"),
        ({"vision_config": {**FLAT["vision_config"], "out_hidden_size": 32}}, "out_hidden_size=32 .* only 64"),
        ({"vision_config": {**FLAT["vision_config"], "hidden_act": "relu"}}, "hidden_act='relu'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_can_not_be_honoured_is_refused_by_name(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        parse_config({**FLAT, **changes})
    assert caught.value.param == "model"


@pytest.fixture(scope="module")
def config() -> Config:
    return parse_config(FLAT)


def test_facts_of_a_checkpoint(qwen2_5_vl: SavedModel) -> None:
    facts = open_checkpoint(qwen2_5_vl.folder).facts
    tokenizer = make_tokenizer()
    assert facts.model_type == "qwen2_5_vl"
    assert facts.vocab_size == tokenizer.get_vocab_size() + 3
    assert facts.image_token_id == tokenizer.token_to_id("<|image_pad|>")
    names = ("<|vision_start|>", "<|vision_end|>", "<|vision_pad|>", "<|image_pad|>", "<|video_pad|>")
    assert facts.media_token_ids == tuple(tokenizer.token_to_id(name) for name in names)
    assert facts.eos_token_ids == tuple(tokenizer.token_to_id(name) for name in ("<|im_end|>", "<|endoftext|>"))
    assert facts.processor.row_bytes == 1176
    assert facts.encoder == EncoderShape(
        hidden_size=64,
        intermediate_size=90,
        mlp_matrices=3,
        num_layers=4,
        full_attention_layers=(1, 3),
        num_heads=8,
        feature_size=64,
        merge_size=2,
        window_blocks=4,
        outer_flops=2 * 64 * (1176 + 4 * 64 + 64),
    )


@pytest.mark.parametrize(
    ("processor", "limits"),
    [
        ({}, (3136, 1003520)),
        ({"min_pixels": 6272, "max_pixels": 12544}, (6272, 12544)),
        ({"size": {"shortest_edge": 6272, "longest_edge": 12544}}, (6272, 12544)),
        ({"size": {"shortest_edge": 1, "longest_edge": 2}, "max_pixels": 12544}, (1, 12544)),
        ({"min_pixels": None, "size": None}, (3136, 1003520)),
    ],
)
def test_pixel_limits_in_old_and_new_form(config: Config, processor: dict[str, Any], limits: tuple[int, int]) -> None:
    found = read_facts(config, processor, {}).processor
    assert (found.min_pixels, found.max_pixels) == limits


@pytest.mark.parametrize("change", [{"do_resize": False}, {"resample": 2}, {"patch_size": 16}, {"merge_size": 1}])
def test_processors_that_can_not_be_honoured_are_refused(config: Config, change: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(change))):
        read_facts(config, {**IMAGE_PROCESSOR, **change}, {})


def test_eos_falls_back_to_the_config(config: Config) -> None:
    assert read_facts(config, {}, {}).eos_token_ids == (FLAT["eos_token_id"],)
    assert read_facts(config, {}, {"eos_token_id": 7}).eos_token_ids == (7,)


@pytest.mark.parametrize("mean", [0.5, [0.5, 0.5]])
def test_a_mean_that_is_not_three_numbers_is_refused(mean: Any) -> None:
    with pytest.raises(UserError, match=r"image_mean .* must be three numbers"):
        read_normalisation({"image_mean": mean})


@pytest.mark.parametrize("switches", [{}, {"do_normalize": False}, {"do_rescale": False, "do_normalize": False}])
def test_bytes_become_what_the_processor_of_hugging_face_makes(switches: dict[str, bool]) -> None:
    """Also that rows of patches are meant to be in its order: by merge block."""
    settings = {**IMAGE_PROCESSOR, **switches}
    picture = np.random.default_rng(0).integers(0, 256, (56, 84, 3), dtype=np.uint8)
    theirs = Qwen2VLImageProcessorPil(**settings)(picture, input_data_format="channels_last", return_tensors="np")
    normalisation = read_normalisation(settings)
    scale, shift = (np.array(x)[:, None, None, None] for x in (normalisation.scale, normalisation.shift))
    patches = picture.reshape(4, 14, 6, 14, 3).transpose(0, 2, 4, 1, 3)
    for index, (row, column) in enumerate(block_positions((4, 6), 2)):
        both_frames = np.repeat(patches[row, column][:, None], 2, axis=1)
        expected = theirs["pixel_values"][index].reshape(3, 2, 14, 14)
        np.testing.assert_allclose(both_frames * scale + shift, expected, rtol=1e-5, atol=1e-5)

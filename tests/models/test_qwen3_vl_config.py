"""Reading the JSON files of Qwen3-VL checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from chiasm.errors import UserError
from chiasm.layers.patch_embedding import PixelNormalisation
from chiasm.models.blocks import block_positions
from chiasm.models.loader import load_model
from chiasm.models.qwen3_vl import MODEL, MoeTextConfig, parse_config, read_facts
from chiasm.models.registry import open_checkpoint
from chiasm.schema.facts import EncoderShape
from tests.checkpoints.common import SPECIAL_TOKENS, edit_json, make_tokenizer
from tests.checkpoints.qwen3_vl import QWEN3_IMAGE_PROCESSOR, QWEN3_VL_CLASSES, qwen3_vl_config, save_qwen3_vl
from tests.invariants import CPU

KINDS = {"dense": False, "experts": True}
DENSE, MOE = (qwen3_vl_config(make_tokenizer(), has_experts=has_experts) for has_experts in (False, True))


def by_transformers(raw: dict[str, Any]) -> dict[str, Any]:
    """The same config as transformers writes it."""
    kind, _ = QWEN3_VL_CLASSES[raw["model_type"]]
    written = json.loads(kind(**json.loads(json.dumps(raw))).to_json_string(use_diff=False))
    return {**written, "transformers_version": "5.24.0"}


@pytest.mark.parametrize("raw", [DENSE, MOE], ids=KINDS)
def test_both_forms_are_read_alike(raw: dict[str, Any]) -> None:
    hub, other = parse_config(raw), parse_config(by_transformers(raw))
    assert hub.text == other.text
    assert hub.joined == other.joined
    for name in hub.vision.__struct_fields__:
        assert name == "rope_parameters" or getattr(hub.vision, name) == getattr(other.vision, name)
    assert (hub.expert_layout, other.expert_layout) == ("in_out", "out_in")
    assert (hub.text.rope_theta, hub.text.mrope_section) == (5e6, (3, 3, 2))


@pytest.mark.parametrize("raw", [DENSE, MOE], ids=KINDS)
def test_missing_fields_take_the_defaults_of_transformers(raw: dict[str, Any]) -> None:
    given = {"text_config": {"hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4}}
    kind, _ = QWEN3_VL_CLASSES[raw["model_type"]]
    ours, theirs = parse_config({"model_type": raw["model_type"], **given}), kind(**given)
    parts = ((ours.text, theirs.text_config), (ours.vision, theirs.vision_config), (ours.joined, theirs))
    for part, reference in parts:
        for name in part.__struct_fields__:
            if name not in ("rope_theta", "mrope_section", "rope_parameters", "eos_token_id", "norm_topk_prob"):
                value = getattr(reference, name)
                assert getattr(part, name) == (tuple(value) if isinstance(value, list) else value), name
    assert ours.text.rope_theta == theirs.text_config.rope_parameters["rope_theta"]


def test_layers_with_and_without_experts() -> None:
    text = parse_config({**MOE, "text_config": {**MOE["text_config"], "decoder_sparse_step": 2}}).text
    assert isinstance(text, MoeTextConfig)
    assert [text.has_experts(layer) for layer in range(5)] == [False, False, False, True, False]


@pytest.mark.parametrize(
    ("part", "changes", "match"),
    [
        ("text_config", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("text_config", {"attention_bias": True}, "attention_bias=True"),
        ("text_config", {"norm_topk_prob": False}, "norm_topk_prob=False"),
        ("text_config", {"num_experts": 1}, "num_experts_per_tok=2 .* num_experts=1"),
        ("text_config", {"num_key_value_heads": 5}, "num_key_value_heads=5"),
        ("text_config", {"head_dim": 32}, r"mrope_section=\[3, 3, 2\]"),
        ("text_config", {"rope_scaling": {"rope_type": "yarn", "mrope_section": [3, 3, 2]}}, "rope_type='yarn'"),
        ("text_config", {"rope_scaling": {"mrope_interleaved": False}}, "mrope_interleaved=False"),
        ("vision_config", {"hidden_act": "silu"}, "hidden_act='silu'"),
        ("vision_config", {"out_hidden_size": 32}, "out_hidden_size=32 .* only 64"),
        ("vision_config", {"num_heads": 7}, "hidden_size=96 .* num_heads=7"),
        ("vision_config", {"depth": 10**18}, "depth=10+ .* must be in"),
        ("vision_config", {"temporal_patch_size": 0}, "temporal_patch_size=0 .* must be in"),
        ("text_config", {"intermediate_size": -2}, "intermediate_size=-2 .* must be in"),
        ("vision_config", {"num_position_embeddings": 50}, "num_position_embeddings=50"),
        ("vision_config", {"deepstack_visual_indexes": [2, 0]}, r"deepstack_visual_indexes=\[2, 0\]"),
        ("vision_config", {"deepstack_visual_indexes": [0, 4]}, r"deepstack_visual_indexes=\[0, 4\]"),
        (
            "vision_config",
            {"deepstack_visual_indexes": [0, 1, 2]},
            "has 3 entries; num_hidden_layers=3 ",
        ),
        ("vision_config", {"patch_size": [16, 16]}, "patch_size"),
    ],
)
def test_what_can_not_be_honoured_is_refused_by_name(part: str, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        parse_config({**MOE, part: {**MOE[part], **changes}})
    assert caught.value.param == "model"


@pytest.mark.parametrize("has_experts", KINDS.values(), ids=KINDS)
def test_facts_of_a_checkpoint(tmp_path: Path, has_experts: bool) -> None:
    facts = open_checkpoint(save_qwen3_vl(tmp_path, has_experts=has_experts).folder).facts
    ids = {token: make_tokenizer().token_to_id(token) for token in SPECIAL_TOKENS}
    assert facts.model_type == ("qwen3_vl_moe" if has_experts else "qwen3_vl")
    assert facts.image_token_id == ids["<|image_pad|>"]
    names = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
    assert facts.media_token_ids == tuple(ids[name] for name in names)
    assert facts.eos_token_ids == (ids["<|im_end|>"],)
    assert (facts.processor.min_pixels, facts.processor.max_pixels, facts.processor.row_bytes) == (4096, 262144, 1536)
    assert facts.encoder == EncoderShape(
        hidden_size=96,
        intermediate_size=90,
        mlp_matrices=2,
        num_layers=4,
        full_attention_layers=(0, 1, 2, 3),
        num_heads=12,
        feature_size=3 * 64,
        merge_size=2,
        outer_flops=2 * 96 * (1536 + 3 * (4 * 96 + 64)),
    )


def test_an_image_processor_without_settings() -> None:
    facts = read_facts(parse_config(DENSE), {}, {})
    assert (facts.processor.min_pixels, facts.processor.max_pixels) == (3136, 1003520)
    assert MODEL.normalisation({}) == PixelNormalisation((1 / 127.5,) * 3, (-1.0,) * 3)
    assert MODEL.normalisation({"image_mean": [0.0] * 3, "image_std": [1.0] * 3}).scale == (1 / 255,) * 3


def test_bytes_become_what_the_processor_of_hugging_face_makes() -> None:
    """Also that rows of patches are meant to be in its order: by merge block."""
    picture = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    processor = Qwen2VLImageProcessorPil(**QWEN3_IMAGE_PROCESSOR)
    theirs = processor(picture, input_data_format="channels_last", return_tensors="np")["pixel_values"]
    normalisation = MODEL.normalisation(QWEN3_IMAGE_PROCESSOR)
    scale, shift = (np.array(x)[:, None, None, None] for x in (normalisation.scale, normalisation.shift))
    patches = picture.reshape(4, 16, 6, 16, 3).transpose(0, 2, 4, 1, 3)
    for expected, (row, column) in zip(theirs, block_positions((4, 6), 2), strict=True):
        both_frames = np.repeat(patches[row, column][:, None], 2, axis=1)
        np.testing.assert_allclose(both_frames * scale + shift, expected.reshape(3, 2, 16, 16), rtol=0, atol=1e-6)


def test_heads_that_do_not_divide_are_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(save_qwen3_vl(tmp_path, has_experts=False).folder)
    with pytest.raises(UserError, match=r"tensor_parallel_size=3 does not divide .* sizes that fit: 1, 2, 4, 8"):
        checkpoint.check_sharding(3, 1)
    with pytest.raises(UserError, match="12 attention heads among 5 ranks; sizes that fit: 1, 2, 3, 4, 6, 12"):
        checkpoint.check_sharding(1, 5)


@pytest.mark.parametrize(
    ("version", "names"), [("5.24.0", "hub"), ("4.57.1", "transformers5"), (None, "transformers5")]
)
def test_experts_in_the_other_layout_are_never_taken(tmp_path: Path, version: str | None, names: Any) -> None:
    """The version says which one it is."""
    save_qwen3_vl(tmp_path, names, has_experts=True)
    edit_json(tmp_path / "config.json", lambda raw: raw.update(transformers_version=version))
    with pytest.raises(UserError, match=r"experts\.\w+ has the shape"):
        load_model(tmp_path, dtype=torch.float32, device=CPU)

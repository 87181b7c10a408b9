"""Reading the JSON files of Mllama checkpoints."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from transformers.models.mllama.configuration_mllama import MllamaConfig

from chiasm.errors import UserError
from chiasm.models.mllama import MODEL, parse_config
from chiasm.schema.facts import EncoderShape
from chiasm.schema.media import CanvasProcessorSpec, CanvasShape
from tests.checkpoints.common import make_tokenizer
from tests.checkpoints.mllama import LLAMA_SPECIAL_TOKENS, MLLAMA_IMAGE_PROCESSOR, mllama_config

TOKENIZER = make_tokenizer(LLAMA_SPECIAL_TOKENS)
RAW = mllama_config(TOKENIZER)


def changed(where: str, changes: dict[str, Any]) -> dict[str, Any]:
    raw = copy.deepcopy(RAW)
    (raw[where] if where else raw).update(changes)
    return raw


def test_both_forms_are_read_alike() -> None:
    other = json.loads(MllamaConfig(**copy.deepcopy(RAW)).to_json_string(use_diff=False))
    assert "rope_scaling" not in other["text_config"]
    assert parse_config({**other, "model_type": "mllama"}) == parse_config(RAW)


def test_missing_fields_take_the_defaults_of_transformers() -> None:
    ours, theirs = parse_config({"model_type": "mllama"}), MllamaConfig()
    for part, reference in ((ours.text, theirs.text_config), (ours.vision, theirs.vision_config)):
        for name in part.__struct_fields__:
            if name not in ("rope_theta", "rope_scaling", "supported_aspect_ratios"):
                value = getattr(reference, name)
                assert getattr(part, name) == (tuple(value) if isinstance(value, list) else value), name
    assert ours.text.rope_theta == theirs.text_config.default_theta
    assert ours.image_token_id == theirs.image_token_index


@pytest.mark.parametrize(
    ("where", "changes", "match"),
    [
        ("", {"image_token_index": 10**6}, "image_token_index=1000000"),
        ("text_config", {"hidden_act": "gelu"}, "hidden_act='gelu' .* only 'silu'"),
        ("text_config", {"rope_scaling": {"rope_type": "yarn"}}, "rope_type='yarn' .* 'default' or 'llama3'"),
        ("text_config", {"rope_scaling": {"rope_type": "llama3"}}, "factor"),
        ("text_config", {"tie_word_embeddings": True}, "tie_word_embeddings=True"),
        ("text_config", {"num_key_value_heads": 3}, "num_attention_heads=8 .* num_key_value_heads=3"),
        ("text_config", {"num_attention_heads": 7}, "hidden_size=64 .* num_attention_heads=7"),
        (
            "text_config",
            {"cross_attention_layers": [1, 5]},
            r"cross_attention_layers=\[1, 5\] .* num_hidden_layers=5",
        ),
        ("text_config", {"cross_attention_layers": []}, r"cross_attention_layers=\[\]"),
        ("vision_config", {"hidden_act": "quick_gelu"}, "hidden_act='quick_gelu'"),
        ("vision_config", {"num_channels": 1}, "num_channels=1"),
        ("vision_config", {"attention_heads": 7}, "hidden_size=96 .* attention_heads=7"),
        ("vision_config", {"image_size": 45}, "image_size=45 .* patch_size=14"),
        ("vision_config", {"image_size": [42, 42]}, "vision_config"),
        ("vision_config", {"vision_output_dim": 96}, "vision_output_dim=96 .* only 288"),
        ("vision_config", {"intermediate_layers_indices": [0, 3]}, r"intermediate_layers_indices=\[0, 3\]"),
        ("vision_config", {"supported_aspect_ratios": [[1, 1]]}, "supported_aspect_ratios"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_can_not_be_honoured_is_refused_by_name(where: str, changes: dict[str, Any], match: str) -> None:
    with pytest.raises(UserError, match=match) as caught:
        parse_config(changed(where, changes))
    assert caught.value.param == "model"


@pytest.mark.parametrize(
    "setting",
    [{"do_pad": False}, {"resample": 3}, {"max_image_tiles": 6}, {"size": {"height": 56, "width": 56}}],
    ids=lambda setting: next(iter(setting)),
)
def test_settings_of_the_processor_must_be_those_of_the_tower(setting: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=next(iter(setting))):
        MODEL.facts(parse_config(RAW), {**MLLAMA_IMAGE_PROCESSOR, **setting}, {})


def test_facts_of_a_checkpoint() -> None:
    facts = MODEL.facts(parse_config(RAW), MLLAMA_IMAGE_PROCESSOR, {})
    placeholder = TOKENIZER.token_to_id("<|image|>")
    assert facts.media_token_ids == (placeholder,)
    assert facts.image_token_id == placeholder == facts.vocab_size, "it is beyond what can be sampled"
    assert facts.input_size == facts.vocab_size + 8
    assert facts.eos_token_ids == (TOKENIZER.token_to_id("<|eot_id|>"),)
    assert facts.num_cross_layers == 2
    assert facts.video is None
    assert facts.processor == CanvasProcessorSpec(14, 1, 1, CanvasShape(3, 4))
    assert facts.encoder == EncoderShape(
        hidden_size=96,
        intermediate_size=180,
        mlp_matrices=2,
        num_layers=5,
        full_attention_layers=(0, 1, 2, 3, 4),
        num_heads=12,
        feature_size=64,
        outer_flops=2 * (96 * 588 + 288 * 64),
        canvas=CanvasShape(3, 4),
    )


@pytest.mark.parametrize(
    ("text_size", "vision_size", "match"), [(3, 1, "tensor_parallel_size=3"), (1, 5, "12 attention")]
)
def test_heads_that_do_not_divide_are_refused(text_size: int, vision_size: int, match: str) -> None:
    with pytest.raises(UserError, match=match):
        MODEL.check_sharding(parse_config(RAW), text_size, vision_size)

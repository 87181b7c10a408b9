"""What the models read of published checkpoints' JSON files."""

from __future__ import annotations

from typing import Any

import pytest

from chiasm.models import glm4v, qwen2_5_vl
from chiasm.models.registry import find_entry
from chiasm.schema.facts import ModelFacts
from chiasm.schema.media import PatchProcessorSpec, TileProcessorSpec
from tests.published.files import PUBLISHED, needs_published, read_published
from tests.published.glm import GLM, GLM_EOS, GLM_PROCESSOR
from tests.published.llama import LLAMA4, MLLAMA
from tests.published.qwen import QWEN2_VL, QWEN3_VL, QWEN_GENERATION

CONFIGS = {**QWEN2_VL, **QWEN3_VL, **GLM, **LLAMA4, **MLLAMA}
QWEN_EOS = (151645, 151643)
LLAMA4_EOS, MLLAMA_EOS = (200001, 200007, 200008), (128001, 128008, 128009)
# The longest context, and what ends an answer.
LIMITS: dict[str, tuple[int, tuple[int, ...]]] = {
    **{name: (32768 if name.startswith("Qwen2-") else 128000, QWEN_EOS) for name in QWEN2_VL},
    **dict.fromkeys(QWEN3_VL, (262144, QWEN_EOS)),
    "GLM-4.1V-9B-Thinking": (65536, (*GLM_EOS, 151348)),
    "GLM-4.5V": (65536, tuple(GLM_EOS)),
    "GLM-4.6V": (131072, tuple(GLM_EOS)),
    "GLM-4.6V-Flash": (131072, tuple(GLM_EOS)),
    "Llama-4-Scout-17B-16E-Instruct": (10485760, LLAMA4_EOS),
    "Llama-4-Maverick-17B-128E-Instruct": (1048576, LLAMA4_EOS),
    **dict.fromkeys(MLLAMA, (131072, MLLAMA_EOS)),
}
EPS = {name: 1e-6 if name.startswith("Qwen") else 1e-5 for name in CONFIGS}


def facts_of(name: str, processor: dict[str, Any]) -> ModelFacts:
    raw = CONFIGS[name]
    entry = find_entry(raw["model_type"])
    generation = QWEN_GENERATION if name.startswith("Qwen") else {}
    return entry.facts(entry.parse_config(raw), processor, generation)


@pytest.mark.parametrize("name", CONFIGS)
def test_contexts_and_ends(name: str) -> None:
    facts = facts_of(name, {})
    assert (facts.max_position_embeddings, facts.eos_token_ids) == LIMITS[name]
    config = find_entry(CONFIGS[name]["model_type"]).parse_config(CONFIGS[name])
    assert config.text.rms_norm_eps == EPS[name]


@pytest.mark.parametrize("name", [name for name in QWEN2_VL if "2.5" in name])
def test_positions_of_qwen2_5_count_on_twice_a_second(name: str) -> None:
    vision = qwen2_5_vl.parse_config(CONFIGS[name]).vision
    assert (vision.tokens_per_second, vision.window_blocks, vision.fullatt_block_indexes) == (2, 4, (7, 15, 23, 31))
    assert (vision.depth, vision.num_heads, vision.hidden_size) == (32, 16, 1280), "those of 32B are defaults"


@pytest.mark.parametrize(
    ("name", "theta", "tokens"),
    [
        ("GLM-4.1V-9B-Thinking", 10000, (151343, 151344)),
        ("GLM-4.5V", 10000, (151363, 151364)),
        ("GLM-4.6V", 500000, (151363, 151364)),
        ("GLM-4.6V-Flash", 500000, (151363, 151364)),
    ],
)
def test_glm_rotates_half_of_a_head(name: str, theta: float, tokens: tuple[int, int]) -> None:
    config = glm4v.parse_config(GLM[name])
    assert (config.text.rope_theta, config.text.rotary_dim, config.text.head_dim) == (theta, 64, 128)
    assert (config.joined.image_token_id, config.joined.video_token_id) == tokens


def test_limits_of_glm_are_of_two_frames_for_a_picture() -> None:
    processor = facts_of("GLM-4.6V", GLM_PROCESSOR).processor
    assert isinstance(processor, PatchProcessorSpec)
    assert (processor.min_pixels, processor.max_pixels) == (12544 // 2, 9633792 // 2)


@pytest.mark.parametrize("name", LLAMA4)
def test_llama_4_takes_16_tiles_unless_its_processor_says_otherwise(name: str) -> None:
    processor = facts_of(name, {}).processor
    assert isinstance(processor, TileProcessorSpec)
    assert (processor.tile_size, processor.max_tiles) == (336, 16)
    text = find_entry("llama4").parse_config(CONFIGS[name]).text
    assert (text.attn_temperature_tuning, text.attn_scale, text.floor_scale) == (True, 0.1, 8192)
    early = {**CONFIGS[name], "text_config": {**CONFIGS[name]["text_config"], "attn_temperature_tuning": 4}}
    assert find_entry("llama4").parse_config(early).text == text


# --------------------------------------------------------------------------------------------------------------------
# Against the files themselves

# The files of one size say the same, whatever it was trained to.
LIKE = {
    "Qwen3-VL-30B-A3B-Thinking": "Qwen3-VL-30B-A3B-Instruct",
    "Qwen3-VL-235B-A22B-Thinking": "Qwen3-VL-235B-A22B-Instruct",
    "Qwen3-VL-32B-Thinking-FP8": "Qwen3-VL-32B-Thinking",
    "Qwen3-VL-30B-A3B-Instruct-FP8": "Qwen3-VL-30B-A3B-Instruct",
    "Qwen3-VL-235B-A22B-Instruct-FP8": "Qwen3-VL-235B-A22B-Instruct",
    "GLM-4.5V-FP8": "GLM-4.5V",
    "GLM-4.6V-FP8": "GLM-4.6V",
}
NOT_THERE = {"Qwen3-VL-32B-Thinking", *(name for name in QWEN2_VL if "7B" not in name and "32B" not in name)}
FILES = [
    *((name, "config.json") for name in (*QWEN2_VL, *QWEN3_VL, *GLM, *LIKE) if name not in NOT_THERE),
    ("Qwen3-VL-4B-Thinking-FP8", "config.json"),
    ("GLM-4.5V", "config.first-revision.json"),
]


@needs_published
@pytest.mark.parametrize(("name", "file"), FILES)
def test_the_files_say_what_we_say_of_them(name: str, file: str) -> None:
    raw = read_published(name, file)
    parse = find_entry(raw["model_type"]).parse_config
    if name == "Qwen3-VL-4B-Thinking-FP8":  # is said not to be tied at the top, and to be below
        assert parse(raw).tying.setting is None
        raw["tie_word_embeddings"] = True
        name = "Qwen3-VL-4B-Thinking"
    raw.setdefault("tie_word_embeddings", False)
    assert parse(raw) == parse(CONFIGS[LIKE.get(name, name)])


@needs_published
def test_every_folder_is_read() -> None:
    folders = {path.parent.name for path in PUBLISHED.glob("*/config.json")}
    assert folders == {name for name, _ in FILES}


@needs_published
@pytest.mark.parametrize("name", ["GLM-4.1V-9B-Thinking", "GLM-4.5V", "GLM-4.6V"])
def test_settings_of_glms_processor(name: str) -> None:
    settings = read_published(name, "preprocessor_config.json")
    assert {key: settings[key] for key in GLM_PROCESSOR} == GLM_PROCESSOR
    assert settings.keys() - GLM_PROCESSOR.keys() == {"image_processor_type", "processor_class"}


@needs_published
@pytest.mark.parametrize("name", [name for name in (*QWEN2_VL, *QWEN3_VL) if "7B" in name or "30B" in name])
def test_the_ends_of_qwens_answers(name: str) -> None:
    assert read_published(name, "generation_config.json")["eos_token_id"] == list(QWEN_EOS)

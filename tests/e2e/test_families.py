"""``chiasm.LLM`` against Hugging Face: every family with text, images and videos."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from chiasm import LLM, SamplingParams
from tests.checkpoints.common import SavedModel
from tests.checkpoints.glm4v import save_glm4v
from tests.checkpoints.llama4 import save_llama4
from tests.checkpoints.mllama import save_mllama
from tests.checkpoints.qwen2 import save_qwen2_5_vl, save_qwen2_vl
from tests.checkpoints.qwen3_vl import save_qwen3_vl
from tests.e2e.compare import Setup, compare_engine, continuations, make_cases, most_difference
from tests.e2e.pictures import photograph
from tests.e2e.reference import NUM_TOKENS, Reference, folder_of

pytestmark = pytest.mark.usefixtures("forked_children")

GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
FAMILIES: dict[str, Callable[[Path], SavedModel]] = {
    "glm4v": lambda folder: save_glm4v(folder),
    "glm4v_moe": lambda folder: save_glm4v(folder, has_experts=True),
    "llama4": save_llama4,
    "llama4, interleaved": lambda folder: save_llama4(folder, "transformers5", is_interleaved=True),
    "mllama": lambda folder: save_mllama(folder),
    "qwen2_5_vl": save_qwen2_5_vl,
    "qwen2_vl": save_qwen2_vl,
    "qwen3_vl": lambda folder: save_qwen3_vl(folder, has_experts=False),
    "qwen3_vl_moe": lambda folder: save_qwen3_vl(folder, has_experts=True),
}


SETUPS = (Setup(1, "auto"), Setup(2, "auto"))
# Every tower is tested sharded on the model alone (tests/models); whole engines where what they pass on differs.
SHARDED = {"llama4", "mllama", "qwen2_5_vl", "qwen3_vl"}


@pytest.mark.parametrize("family", FAMILIES)
def test_answers_equal_hugging_face(tmp_path: Path, family: str) -> None:
    """Of each prompt alone and of all in one batch, prefilled in chunks, on one rank and on two."""
    reference = Reference(FAMILIES[family](tmp_path))
    cases = make_cases(reference, scale=0.5)
    expected = continuations(reference, cases)
    most = {name: most_difference(torch.cat([own.logits, own.prompt_logits])) for name, own in expected.items()}
    for setup in (*SETUPS, Setup(2, "weights")) if family in SHARDED else SETUPS:
        result = compare_engine(tmp_path, setup, cases, expected, max_num_batched_tokens=50)
        for name, found in (*result.alone.items(), *result.batch.items()):
            assert found.has_same_tokens
            assert found.difference < most[name]
            assert found.prompt_difference < most[name]
        assert all(found.prompt_difference > 0 for found in result.alone.values()), "it is compared"


def test_a_conversation_with_glm_equals_hugging_face(tmp_path: Path) -> None:
    saved = save_glm4v(tmp_path)
    image = photograph("chelsea.png", (100, 80))
    content = [{"type": "image", "image": image}, {"type": "text", "text": "Was ist das? 🙂"}]
    messages = [{"role": "user", "content": content}]
    reference = Reference(saved)
    prompt = reference.chat_prompt(messages)
    assert prompt.startswith("[gMASK]<sop><|user|>\n<|begin_of_image|><|image|><|end_of_image|>Was")
    with LLM(folder_of(saved), dtype="float32") as llm:
        [output] = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == reference.answer(prompt, [image])


def test_a_conversation_with_llama4_equals_hugging_face(tmp_path: Path) -> None:
    saved = save_llama4(tmp_path)
    images = [photograph("chelsea.png", (200, 80)), photograph("coffee.png", (90, 170))]
    content = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": "Was ist das? 🙂"}]
    messages = [{"role": "user", "content": content}]
    reference = Reference(saved)
    prompt = reference.chat_prompt(messages)
    assert prompt.startswith("<|begin_of_text|><|header_start|>user<|header_end|>\n\n<|image|><|image|>Was")
    expected = reference.answer(prompt, images)
    with LLM(folder_of(saved), dtype="float32") as llm:
        for _ in range(2):  # the second time from the caches of the prefix and of the tiles
            [output] = llm.chat(messages, GREEDY, use_tqdm=False)
            assert output.outputs[0].token_ids == expected
        assert output.num_cached_tokens


def test_a_conversation_with_mllama_equals_hugging_face(tmp_path: Path) -> None:
    """With text before the first image, and turns that add a text, two images, or one each."""
    saved = save_mllama(tmp_path)
    sizes = {"chelsea.png": (100, 80), "coffee.png": (40, 90), "astronaut.png": (160, 30)}
    images = [photograph(name, size) for name, size in sizes.items()]
    reference = Reference(saved)

    def user(text: str, *own: Any) -> dict[str, Any]:
        pictures = [{"type": "image", "image": image} for image in own]
        return {"role": "user", "content": [*pictures, {"type": "text", "text": text}]}

    assistant = {"role": "assistant", "content": "A cat."}
    first = user("Was ist das? 🙂", images[0])
    conversations = [
        ([first], images[:1]),
        ([first, assistant, user("And why?")], images[:1]),
        ([first, assistant, user("And these?", *images[1:])], images),
        ([user("One?", images[0]), user("Two?", images[1]), user("Three?", images[2])], images),
    ]
    with LLM(folder_of(saved), dtype="float32") as llm:
        for messages, own in conversations * 2:  # the second time from the caches
            prompt = reference.chat_prompt(messages)
            assert prompt.startswith("<|begin_of_text|><|start_header_id|>user")
            [output] = llm.chat(messages, GREEDY, use_tqdm=False)
            assert output.outputs[0].token_ids == reference.answer(prompt, own)

"""Qwen2.5-VL against Hugging Face, and against itself on more ranks and in other batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from chiasm.config.engine import EncoderMode
from tests import invariants
from tests.checkpoints.common import SavedModel
from tests.invariants import Family
from tests.models.qwen2 import load_family, media_inputs
from tests.prompts import Clip, Prompt, make_prompt
from tests.ranks import RankPool

# Pieces of prompts: a number of text tokens, the patch grid of an image, or a clip.
PROMPTS = {
    "text": [19],
    "one token": [1],
    "one image": [5, (1, 10, 12), 7],
    "two images of different sizes": [3, (1, 8, 8), 4, (1, 14, 6), 9],
    "images side by side": [(1, 4, 4), (1, 4, 4), 1],
    "one merge block": [2, (1, 2, 2), 2],
    "one row of merge blocks": [2, (1, 2, 26), 2],
    "one column of merge blocks": [2, (1, 26, 2), 2],
    "a ribbon, 28 x 1988 pixels": [4, (1, 2, 142), 3],
    "several frames": [3, (3, 6, 10), 5],
    "one large image": [2, (1, 28, 20), 3],
    "more frames than rows and columns": [2, (9, 4, 4), 1],
    "a video": [3, Clip((4, 6, 8), 1.0), 5],
    "a slice": [3, Clip((1, 4, 4), 2 / 24), 5],
    "frames close together": [3, Clip((5, 4, 6), 2 / 24), 5],
    "frames at odd times": [3, Clip((7, 4, 4), 2 / (5 / 37 * 29.97)), 5],
    "image, video, video, image": [2, (1, 4, 6), 3, Clip((3, 4, 4), 0.7), Clip((2, 6, 4), 2.5), 1, (1, 2, 4), 2],
}
WITH_IMAGES = [name for name, pieces in PROMPTS.items() if any(isinstance(piece, tuple) for piece in pieces)]


@pytest.fixture(scope="module")
def family(qwen2_5_vl: SavedModel) -> Family:
    return load_family(qwen2_5_vl)


def prompt_of(family: Family, name: str) -> Prompt:
    return make_prompt(family.facts, PROMPTS[name])


@pytest.mark.parametrize("name", PROMPTS)
def test_logits_equal_hugging_face(family: Family, name: str) -> None:
    invariants.logits_equal_reference(family, prompt_of(family, name))


@pytest.mark.parametrize("name", WITH_IMAGES)
def test_features_equal_hugging_face(family: Family, name: str) -> None:
    invariants.features_equal_reference(family, prompt_of(family, name))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_close(family: Family, dtype: torch.dtype) -> None:
    invariants.low_precision_is_close(family, prompt_of(family, "one image"), dtype)


@pytest.mark.parametrize("chunks", [(1, 1, 1), (8, 8, 8), (5, 17, 1, 1), (40, 1, 1, 1)])
def test_chunked_prefill_equals_whole(family: Family, chunks: tuple[int, ...]) -> None:
    invariants.chunked_equals_whole(family, prompt_of(family, "one image"), chunks)


@pytest.mark.parametrize("chunks", [(), (6, 1, 1, 30)])
def test_batch_equals_single(family: Family, chunks: tuple[int, ...]) -> None:
    names = ["text", "one image", "one token", "several frames", "two images of different sizes"]
    invariants.batch_equals_single(family, [prompt_of(family, name) for name in names], chunks)


def test_packed_units_equal_units_alone(family: Family) -> None:
    invariants.packed_equals_alone(family, [prompt_of(family, name) for name in WITH_IMAGES])


@pytest.mark.parametrize("name", PROMPTS)
def test_rope_positions_equal_hugging_face(family: Family, qwen2_5_vl: SavedModel, name: str) -> None:
    prompt = prompt_of(family, name)
    media = media_inputs(prompt, family.facts)
    expected, _ = qwen2_5_vl.reference.model.get_rope_index(torch.tensor([prompt.token_ids]), **media)
    computed = family.model.rope_positions(len(prompt.token_ids), prompt.items)
    assert np.array_equal(computed.positions, expected[:, 0].numpy())
    assert computed.delta == expected[:, 0, -1].max().item() + 1 - len(prompt.token_ids), "as generate counts on"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sharding", [(True, False), (False, True)], ids=["text", "tower"])
@pytest.mark.parametrize("size", [2, 4, 8])
def test_sharded_equals_one_rank(
    family: Family, rank_pool: RankPool, size: int, sharding: invariants.Sharding, dtype: torch.dtype
) -> None:
    prompts = [prompt_of(family, name) for name in ("text", "two images of different sizes")]
    invariants.sharded_equals_whole(family, rank_pool, size, prompts, sharding, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("size", "mode"),
    [*((size, mode) for size in (2, 3, 4, 8) for mode in ("data", "auto")), (2, "weights"), (4, "weights")],
)
def test_encoder_mode_equals_one_rank(
    family: Family, rank_pool: RankPool, size: int, mode: EncoderMode, dtype: torch.dtype
) -> None:
    names = ("one image", "two images of different sizes", "a video", "one large image")
    prompts = [prompt_of(family, name) for name in names]
    invariants.encoder_mode_equals_one_rank(family, rank_pool, size, prompts, mode, dtype)


@pytest.mark.parametrize(("size", "mode"), invariants.STEPS)
def test_several_steps_equal_one(family: Family, rank_pool: RankPool, size: int, mode: EncoderMode) -> None:
    prompts = [prompt_of(family, name) for name in ("one image", "a video", "one large image")]
    invariants.steps_equal_one_step(family, rank_pool, prompts, size, mode)

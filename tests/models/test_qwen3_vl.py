"""Qwen3-VL, dense and with experts, against Hugging Face, and against itself on more ranks and in other batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from chiasm.config.engine import EncoderMode
from chiasm.dist.group import Group
from chiasm.models.loader import load_model
from chiasm.models.registry import open_checkpoint
from tests import invariants
from tests.checkpoints.common import SavedModel
from tests.checkpoints.qwen3_vl import save_qwen3_vl
from tests.invariants import CPU, Family
from tests.prompts import Prompt, make_prompt
from tests.ranks import RankPool

PROMPTS = {
    "text": [19],
    "one image": [5, (1, 10, 12), 7],
    "two images of different sizes": [3, (1, 8, 8), 4, (1, 14, 6), 9],
    "images side by side": [(1, 4, 4), (1, 4, 4), 1],
    "one merge block": [2, (1, 2, 2), 2],
    "one row of merge blocks": [2, (1, 2, 26), 2],
    "several frames": [3, (3, 6, 10), 5],
    "one large image": [2, (1, 28, 20), 3],
}
WITH_IMAGES = [name for name in PROMPTS if name != "text"]
KINDS = {"dense": False, "experts": True}


def pixel_values(prompt: Prompt) -> Tensor:
    """What Hugging Face's processor makes of the bytes."""
    return torch.from_numpy(np.concatenate(prompt.pixels).astype(np.float32) / 127.5 - 1)


@pytest.fixture(scope="module", params=list(KINDS))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    return save_qwen3_vl(tmp_path_factory.mktemp("qwen3_vl"), has_experts=KINDS[request.param])


@pytest.fixture(scope="module")
def family(saved: SavedModel) -> Family:
    loaded = load_model(saved.folder, dtype=torch.float32, device=CPU)
    reference = saved.reference

    @torch.inference_mode()
    def features(prompt: Prompt) -> Tensor:
        grids = torch.tensor([item.thw for item in prompt.items])
        out = reference.model.visual(pixel_values(prompt), grid_thw=grids)
        return torch.cat([out.pooler_output, *out.deepstack_features], dim=1)

    @torch.inference_mode()
    def logits(prompt: Prompt) -> Tensor:
        ids = torch.tensor([prompt.token_ids])
        media = {}
        if prompt.items:
            media["pixel_values"] = pixel_values(prompt)
            media["image_grid_thw"] = torch.tensor([item.thw for item in prompt.items])
        types = (ids == loaded.facts.image_token_id).int()
        return reference(input_ids=ids, mm_token_type_ids=types, use_cache=False, **media).logits[0]

    return Family(saved.folder, loaded.facts, loaded.model, features, logits)


def prompts_of(family: Family, *names: str) -> list[Prompt]:
    return [make_prompt(family.facts, PROMPTS[name]) for name in names]


@pytest.mark.parametrize("name", PROMPTS)
def test_logits_equal_hugging_face(family: Family, name: str) -> None:
    invariants.logits_equal_reference(family, *prompts_of(family, name))


@pytest.mark.parametrize("name", WITH_IMAGES)
def test_features_equal_hugging_face(family: Family, name: str) -> None:
    invariants.features_equal_reference(family, *prompts_of(family, name))


def test_low_precision_is_close(family: Family) -> None:
    invariants.low_precision_is_close(family, *prompts_of(family, "one image"), torch.bfloat16)


@pytest.mark.parametrize("chunks", [(8, 8, 8), (5, 17, 1, 1)])
def test_chunked_prefill_equals_whole(family: Family, chunks: tuple[int, ...]) -> None:
    invariants.chunked_equals_whole(family, *prompts_of(family, "one image"), chunks)


@pytest.mark.parametrize("chunks", [(), (6, 1, 1, 30)])
def test_batch_equals_single(family: Family, chunks: tuple[int, ...]) -> None:
    names = ("text", "one image", "several frames", "two images of different sizes")
    invariants.batch_equals_single(family, prompts_of(family, *names), chunks)


def test_packed_units_equal_units_alone(family: Family) -> None:
    invariants.packed_equals_alone(family, prompts_of(family, *WITH_IMAGES))


def test_rope_positions_equal_hugging_face(family: Family, saved: SavedModel) -> None:
    for prompt in prompts_of(family, *PROMPTS):
        ids = torch.tensor([prompt.token_ids])
        grids = torch.tensor([item.thw for item in prompt.items]) if prompt.items else None
        types = (ids == family.facts.image_token_id).int()
        expected, delta = saved.reference.model.get_rope_index(ids, types, image_grid_thw=grids)
        computed = family.model.rope_positions(len(prompt.token_ids), prompt.items)
        assert np.array_equal(computed.positions, expected[:, 0].numpy())
        assert computed.delta == delta.item()


@pytest.mark.parametrize("names", ["hub", "transformers5"])
@pytest.mark.parametrize("tied", [False, True], ids=["apart", "tied"])
@pytest.mark.parametrize("has_experts", KINDS.values(), ids=KINDS)
def test_both_layouts_give_the_weights_of_hugging_face(
    tmp_path: Path, names: str, tied: bool, has_experts: bool
) -> None:
    saved = save_qwen3_vl(tmp_path, names, has_experts=has_experts, tied=tied)
    model = load_model(tmp_path, dtype=torch.float32, device=CPU).model
    weights, expected = dict(model.named_parameters()), saved.reference.state_dict()
    pairs = {
        "visual.deepstack_merger_list.1.mlp.fc2.bias": "visual.deepstack_merger_list.1.linear_fc2.bias",
        "visual.pos_embed.weight": "visual.pos_embed.weight",
        "language_model.layers.1.self_attn.k_norm.weight": "language_model.layers.1.self_attn.k_norm.weight",
    }
    if has_experts:
        for part in ("gate_up", "down"):
            name = f"language_model.layers.2.mlp.experts.{part}_proj"
            pairs[f"{name}.weight"] = name
    for own, other in pairs.items():
        assert torch.equal(weights[own], expected[f"model.{other}"]), own
    assert ("lm_head.weight" in weights) != tied


@pytest.mark.parametrize("rank", [0, 3])
def test_every_element_is_loaded_once(saved: SavedModel, rank: int) -> None:
    invariants.every_element_is_loaded_once(open_checkpoint(saved.folder), Group(rank, 4), Group(rank, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sharding", [(True, False), (False, True)], ids=["text", "tower"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_sharded_equals_one_rank(
    family: Family, rank_pool: RankPool, size: int, sharding: invariants.Sharding, dtype: torch.dtype
) -> None:
    if sharding[0] and size == 3 and family.facts.model_type == "qwen3_vl":
        pytest.skip("its heads do not divide by 3")
    prompts = prompts_of(family, "text", "two images of different sizes")
    invariants.sharded_equals_whole(family, rank_pool, size, prompts, sharding, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["data", "auto", "weights"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_encoder_mode_equals_one_rank(
    family: Family, rank_pool: RankPool, size: int, mode: EncoderMode, dtype: torch.dtype
) -> None:
    prompts = prompts_of(family, "one image", "two images of different sizes", "several frames", "one large image")
    invariants.encoder_mode_equals_one_rank(family, rank_pool, size, prompts, mode, dtype)


@pytest.mark.parametrize("exchange", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_row_cuts_equal_one_rank(family: Family, rank_pool: RankPool, size: int, exchange: str) -> None:
    prompts = prompts_of(family, "two images of different sizes", "one image")
    cuts = [[(rank, (rank + 1) / size) for rank in range(size)], [(size - 1, 1.0)], [(0, 0.3), (size - 1, 1.0)]]
    invariants.row_cuts_equal_one_rank(family, rank_pool, size, prompts, cuts, [exchange] * 3, torch.float64)


@pytest.mark.parametrize(("size", "mode"), invariants.STEPS)
def test_several_steps_equal_one(family: Family, rank_pool: RankPool, size: int, mode: EncoderMode) -> None:
    prompts = prompts_of(family, "one image", "several frames", "one large image")
    invariants.steps_equal_one_step(family, rank_pool, prompts, size, mode)

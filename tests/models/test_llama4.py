"""Llama 4, with experts in every layer and in every second one, against Hugging Face, and against itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from chiasm.config.engine import EncoderMode
from chiasm.dist.group import Group
from chiasm.errors import UserError
from chiasm.models.loader import load_model
from chiasm.models.registry import open_checkpoint
from chiasm.vision.cost import CostModel
from chiasm.vision.plan import plan_vision
from tests import invariants
from tests.checkpoints.common import SavedModel
from tests.checkpoints.llama4 import save_llama4
from tests.invariants import CPU, Family
from tests.prompts import Prompt, make_prompt
from tests.ranks import RankPool

TILE = (1, 6, 6)
PROMPTS = {
    "text": [40],
    "one tile": [5, TILE, 7],
    "several tiles": [3, (5, 6, 6), 5],
    "two images": [3, (2, 6, 6), 4, (3, 6, 6), 9],
    "images side by side": [TILE, TILE, 1],
}
WITH_IMAGES = [name for name in PROMPTS if name != "text"]
KINDS = {"scout": False, "interleaved": True}


def tiles_of(prompt: Prompt, patch_size: int = 14, side: int = 6) -> Tensor:
    """Normalised pixels as Hugging Face's model takes them, float32 [tiles, 3, height, width]."""
    rows = np.concatenate(prompt.pixels).astype(np.float32) / 127.5 - 1
    blocks = rows.reshape(-1, side // 2, side // 2, 2, 2, 3, patch_size, patch_size)
    return (
        torch.from_numpy(blocks).permute(0, 5, 1, 3, 6, 2, 4, 7).reshape(-1, 3, side * patch_size, side * patch_size)
    )


@pytest.fixture(scope="module", params=list(KINDS))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    return save_llama4(tmp_path_factory.mktemp("llama4"), is_interleaved=KINDS[request.param])


@pytest.fixture(scope="module")
def family(saved: SavedModel) -> Family:
    loaded = load_model(saved.folder, dtype=torch.float32, device=CPU)
    reference = saved.reference

    @torch.inference_mode()
    def features(prompt: Prompt) -> Tensor:
        rows = reference.get_image_features(tiles_of(prompt)).last_hidden_state
        return reference.multi_modal_projector(rows.flatten(0, 1))

    @torch.inference_mode()
    def logits(prompt: Prompt) -> Tensor:
        media = {"pixel_values": tiles_of(prompt)} if prompt.items else {}
        return reference(input_ids=torch.tensor([prompt.token_ids]), use_cache=False, **media).logits[0]

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
    invariants.low_precision_is_close(family, *prompts_of(family, "several tiles"), torch.bfloat16)


@pytest.mark.parametrize("chunks", [(8, 8, 8), (5, 17, 1, 1), (30,), (12, 12, 1)])
def test_chunked_prefill_equals_whole(family: Family, chunks: tuple[int, ...]) -> None:
    invariants.chunked_equals_whole(family, *prompts_of(family, "several tiles"), chunks)


@pytest.mark.parametrize("chunks", [(), (6, 1, 1, 30)])
def test_batch_equals_single(family: Family, chunks: tuple[int, ...]) -> None:
    invariants.batch_equals_single(
        family, prompts_of(family, "text", "one tile", "several tiles", "two images"), chunks
    )


def test_packed_units_equal_units_alone(family: Family) -> None:
    invariants.packed_equals_alone(family, prompts_of(family, *WITH_IMAGES))


@pytest.mark.parametrize("rank", [0, 3])
def test_every_element_is_loaded_once(saved: SavedModel, rank: int) -> None:
    invariants.every_element_is_loaded_once(open_checkpoint(saved.folder), Group(rank, 4), Group(rank, 4))


@pytest.mark.parametrize("layout", ["hub", "transformers5"])
@pytest.mark.parametrize("is_interleaved", KINDS.values(), ids=KINDS)
def test_both_layouts_give_the_weights_of_hugging_face(tmp_path: Path, layout: str, is_interleaved: bool) -> None:
    saved = save_llama4(tmp_path, layout, is_interleaved=is_interleaved)
    loaded = load_model(tmp_path, dtype=torch.float32, device=CPU)
    weights, expected = dict(loaded.model.named_parameters()), saved.reference.state_dict()
    pairs = {
        "visual.layers.1.norm2.bias": "vision_model.model.layers.1.post_attention_layernorm.bias",
        "visual.pos_embed": "vision_model.positional_embedding_vlm",
        "visual.projector.linear.weight": "multi_modal_projector.linear_1.weight",
        "lm_head.weight": "language_model.lm_head.weight",
    }
    for own, other in pairs.items():
        assert torch.equal(weights[own], expected[other]), own
    for part in ("gate_up", "down"):
        own = weights[f"language_model.layers.1.mlp.experts.{part}_proj.weight"]
        other = expected[f"language_model.model.layers.1.feed_forward.experts.{part}_proj"]
        assert torch.equal(own.transpose(1, 2), other)
    prefix = "vision_model.model.layers.2.self_attn"
    fused = torch.cat([expected[f"{prefix}.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(weights["visual.layers.2.attn.qkv.weight"], fused)
    assert loaded.facts == open_checkpoint(save_llama4(tmp_path / "hub").folder).facts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sharding", [(True, False), (False, True)], ids=["text", "tower"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_sharded_equals_one_rank(
    family: Family, rank_pool: RankPool, size: int, sharding: invariants.Sharding, dtype: torch.dtype
) -> None:
    if sharding[0] and family.model.language_model.heads.total_heads % size:
        with pytest.raises(UserError, match=f"tensor_parallel_size={size} .* sizes that fit: 1, 2, 4, 8"):
            open_checkpoint(family.folder).check_sharding(size, 1)
        return
    invariants.sharded_equals_whole(
        family, rank_pool, size, prompts_of(family, "text", "two images"), sharding, dtype
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["data", "auto", "weights"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_encoder_mode_equals_one_rank(
    family: Family, rank_pool: RankPool, size: int, mode: EncoderMode, dtype: torch.dtype
) -> None:
    prompts = prompts_of(family, "one tile", "several tiles", "two images")
    invariants.encoder_mode_equals_one_rank(family, rank_pool, size, prompts, mode, dtype)


def test_nine_tiles_on_eight_ranks_are_nine_tiles_of_work(family: Family, rank_pool: RankPool) -> None:
    """No rank computes a tile of zeros for the sake of an even batch."""
    size = 8
    prompts = [make_prompt(family.facts, [(9, 6, 6)])]
    units = invariants.units_of(prompts)
    model = CostModel(family.facts.encoder, invariants.CHEAP_EXCHANGE, size)
    plan = plan_vision(units, num_ranks=size, mode="auto", model=model)
    assert plan.reason == "auto: whole units on 8 ranks, as this tower's can't be cut"
    ranks = rank_pool.run(size, invariants.encode_on_rank, family.folder, prompts, plan, torch.float32, timeout=90.0)
    assert sorted(sum(rank.rows_read.values()) for rank in ranks) == [36] * 7 + [72]
    assert all(rank.features.keys() == {unit.key for unit in units} for rank in ranks)


@pytest.mark.parametrize(("size", "mode"), invariants.STEPS)
def test_several_steps_equal_one(family: Family, rank_pool: RankPool, size: int, mode: EncoderMode) -> None:
    prompts = prompts_of(family, "one tile", "several tiles", "two images")
    invariants.steps_equal_one_step(family, rank_pool, prompts, size, mode)

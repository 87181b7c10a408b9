"""GLM-4.1V and GLM-4.5V against Hugging Face, and against themselves on more ranks and in other batches."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from chiasm.config.engine import EncoderMode
from chiasm.dist.group import SOLO, Group
from chiasm.models.loader import load_model
from chiasm.models.registry import open_checkpoint
from chiasm.schema.plan import Exchange
from tests import invariants
from tests.checkpoints.common import SavedModel
from tests.checkpoints.glm4v import GLM_IMAGE_PROCESSOR, save_glm4v
from tests.invariants import CPU, Family
from tests.prompts import Prompt, make_prompt
from tests.ranks import RankPool

# Pieces of prompts: a number of text tokens, or the patch grid of an image.
PROMPTS = {
    "text": [19],
    "one image": [5, (1, 10, 12), 7],
    "two images of different sizes": [3, (1, 8, 8), 4, (1, 14, 6), 9],
    "one merge block": [2, (1, 2, 2), 2],
    "a table's own grid": [2, (1, 6, 6), 1],
    "a ribbon": [4, (1, 2, 142), 3],
    "one large image": [2, (1, 28, 20), 3],
}
WITH_IMAGES = [name for name, pieces in PROMPTS.items() if any(isinstance(piece, tuple) for piece in pieces)]


def pixel_values(prompt: Prompt) -> Tensor:
    """What Hugging Face's processor makes of the bytes."""
    rows = np.concatenate(prompt.pixels).reshape(-1, 3, 392).astype(np.float32)
    mean, std = (np.array(GLM_IMAGE_PROCESSOR[key])[:, None] for key in ("image_mean", "image_std"))
    return torch.from_numpy(((rows / 255 - mean) / std).reshape(-1, 1176)).float()


def media_of(prompt: Prompt) -> dict[str, Tensor]:
    if not prompt.items:
        return {}
    grids = torch.tensor([(1, *grid) for grid in prompt.grids])
    return {"pixel_values": pixel_values(prompt), "image_grid_thw": grids}


@pytest.fixture(scope="module", params=[False, True], ids=["glm4v", "glm4v_moe"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    return save_glm4v(tmp_path_factory.mktemp("glm4v"), has_experts=request.param)


@pytest.fixture(scope="module")
def family(saved: SavedModel) -> Family:
    loaded = load_model(saved.folder, dtype=torch.float32, device=CPU)

    @torch.inference_mode()
    def features(prompt: Prompt) -> Tensor:
        pixels, grids = media_of(prompt).values()
        return saved.reference.model.visual(pixels, grid_thw=grids).pooler_output

    @torch.inference_mode()
    def logits(prompt: Prompt) -> Tensor:
        ids = torch.tensor([prompt.token_ids])
        types = (ids == loaded.facts.image_token_id).int()
        output = saved.reference(input_ids=ids, mm_token_type_ids=types, use_cache=False, **media_of(prompt))
        return output.logits[0]

    return Family(saved.folder, loaded.facts, loaded.model, features, logits)


# What only the tower does, which both families share.
ONCE = pytest.mark.parametrize("saved", [False], ids=["glm4v"], indirect=True)


def prompt_of(family: Family, name: str) -> Prompt:
    return make_prompt(family.facts, PROMPTS[name])


@pytest.mark.parametrize("name", PROMPTS)
def test_logits_equal_hugging_face(family: Family, name: str) -> None:
    invariants.logits_equal_reference(family, prompt_of(family, name))


@pytest.mark.parametrize("name", WITH_IMAGES)
def test_features_equal_hugging_face(family: Family, name: str) -> None:
    invariants.features_equal_reference(family, prompt_of(family, name))


@ONCE
def test_features_of_several_frames_equal_hugging_face(family: Family) -> None:
    invariants.features_equal_reference(family, make_prompt(family.facts, [3, (3, 6, 10), 5]))


def test_low_precision_is_close(family: Family) -> None:
    # With random weights many scores of experts are near ties, which rounding decides; in this text it decides none.
    name = "text" if family.facts.model_type == "glm4v_moe" else "one merge block"
    invariants.low_precision_is_close(family, prompt_of(family, name), torch.bfloat16)


@pytest.mark.parametrize("chunks", [(1, 1, 1), (5, 17, 1, 1)])
def test_chunked_prefill_equals_whole(family: Family, chunks: tuple[int, ...]) -> None:
    invariants.chunked_equals_whole(family, prompt_of(family, "one image"), chunks)


def test_batch_equals_single(family: Family) -> None:
    names = ["text", "one image", "one merge block", "two images of different sizes"]
    invariants.batch_equals_single(family, [prompt_of(family, name) for name in names], (6, 1, 1, 30))


def test_packed_units_equal_units_alone(family: Family) -> None:
    invariants.packed_equals_alone(family, [prompt_of(family, name) for name in WITH_IMAGES])


@pytest.mark.parametrize("name", PROMPTS)
def test_rope_positions_equal_hugging_face(family: Family, saved: SavedModel, name: str) -> None:
    prompt = prompt_of(family, name)
    ids = torch.tensor([prompt.token_ids])
    types = (ids == family.facts.image_token_id).int()
    grids = media_of(prompt).get("image_grid_thw")
    expected, delta = saved.reference.model.get_rope_index(ids, types, image_grid_thw=grids)
    computed = family.model.rope_positions(len(prompt.token_ids), prompt.items)
    assert np.array_equal(computed.positions, expected[:, 0].numpy())
    assert computed.delta == delta.item()


@pytest.mark.parametrize("group", [SOLO, Group(0, 4), Group(3, 4)], ids=lambda group: f"{group.rank} of {group.size}")
def test_every_element_is_loaded_once(saved: SavedModel, group: Group) -> None:
    invariants.every_element_is_loaded_once(open_checkpoint(saved.folder), group, group)


@pytest.mark.parametrize("sharding", [(True, False), (False, True)], ids=["text", "tower"])
@pytest.mark.parametrize("size", [2, 4])
def test_sharded_equals_one_rank(
    family: Family, rank_pool: RankPool, size: int, sharding: invariants.Sharding
) -> None:
    prompts = [prompt_of(family, name) for name in ("text", "two images of different sizes")]
    for dtype in (torch.float32, torch.float64):
        invariants.sharded_equals_whole(family, rank_pool, size, prompts, sharding, dtype)


def test_layouts_of_both_transformers_load_alike(saved: SavedModel, family: Family, tmp_path: Path) -> None:
    """Version 5 writes its own form of the config, and experts in one tensor if it is asked to."""
    own = save_glm4v(tmp_path, "transformers5", has_experts=family.facts.model_type == "glm4v_moe")
    loaded = load_model(own.folder, dtype=torch.float32, device=CPU)
    assert loaded.facts == family.facts
    for (name, weight), (_, other) in zip(
        loaded.model.named_parameters(), family.model.named_parameters(), strict=True
    ):
        assert torch.equal(weight, other), name


@ONCE
@pytest.mark.parametrize(
    ("size", "mode"),
    [*((size, mode) for size in (2, 3, 4) for mode in ("data", "auto")), (2, "weights"), (4, "weights")],
)
def test_encoder_mode_equals_one_rank(family: Family, rank_pool: RankPool, size: int, mode: EncoderMode) -> None:
    names = ("one image", "two images of different sizes", "one large image")
    prompts = [prompt_of(family, name) for name in names]
    for dtype in (torch.float32, torch.float64):
        invariants.encoder_mode_equals_one_rank(family, rank_pool, size, prompts, mode, dtype)


@ONCE
@pytest.mark.parametrize("exchange", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_row_cuts_equal_one_rank(family: Family, rank_pool: RankPool, size: int, exchange: Exchange) -> None:
    """An uneven cut over all ranks, one that leaves the last rank out, and a whole unit."""
    prompts = [prompt_of(family, name) for name in ("one large image", "one image", "a ribbon")]
    uneven = [(rank, ((rank + 1) / size) ** 2) for rank in range(size)]
    cuts = [uneven, [(size - 2, 0.3), (0, 1.0)] if size > 2 else [(0, 1.0)], [(size - 1, 1.0)]]
    for dtype in (torch.float32, torch.float64):
        invariants.row_cuts_equal_one_rank(family, rank_pool, size, prompts, cuts, [exchange] * 3, dtype)


@ONCE
@pytest.mark.parametrize(("size", "mode"), invariants.STEPS)
def test_several_steps_equal_one(family: Family, rank_pool: RankPool, size: int, mode: EncoderMode) -> None:
    prompts = [prompt_of(family, name) for name in ("one image", "two images of different sizes", "one large image")]
    invariants.steps_equal_one_step(family, rank_pool, prompts, size, mode)

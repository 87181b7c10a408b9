"""Qwen2-VL against Hugging Face, and against itself on more ranks and in other batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from chiasm.config.engine import EncoderMode
from chiasm.dist.group import Group
from chiasm.errors import UserError
from chiasm.models.loader import load_model
from chiasm.models.qwen2_vl import parse_config
from chiasm.models.registry import open_checkpoint
from chiasm.schema.plan import Exchange
from tests import invariants
from tests.checkpoints.common import Layout, SavedModel, make_tokenizer
from tests.checkpoints.qwen2 import qwen2_vl_config, save_qwen2_vl
from tests.invariants import CPU, Family
from tests.models.qwen2 import load_family, media_inputs
from tests.prompts import Clip, Prompt, make_prompt
from tests.ranks import RankPool

PROMPTS = {
    "text": [19],
    "one image": [5, (1, 10, 12), 7],
    "two images of different sizes": [3, (1, 8, 8), 4, (1, 14, 6), 9],
    "one merge block": [2, (1, 2, 2), 2],
    "a ribbon, 28 x 1988 pixels": [4, (1, 2, 142), 3],
    "one large image": [2, (1, 28, 20), 3],
    "a video": [3, Clip((4, 6, 8), 1.0), 5],
    "more frames than rows and columns": [2, Clip((9, 4, 4), 0.4), 1],
    "image, video, video, image": [2, (1, 4, 6), 3, Clip((3, 4, 4), 0.7), Clip((2, 6, 4), 2.5), 1, (1, 2, 4), 2],
}
WITH_MEDIA = [name for name in PROMPTS if name != "text"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    return save_qwen2_vl(tmp_path_factory.mktemp("qwen2_vl"))


@pytest.fixture(scope="module")
def family(saved: SavedModel) -> Family:
    return load_family(saved)


def prompts_of(family: Family, *names: str) -> list[Prompt]:
    return [make_prompt(family.facts, PROMPTS[name]) for name in names]


@pytest.mark.parametrize("name", PROMPTS)
def test_logits_equal_hugging_face(family: Family, name: str) -> None:
    invariants.logits_equal_reference(family, *prompts_of(family, name))


@pytest.mark.parametrize("name", WITH_MEDIA)
def test_features_equal_hugging_face(family: Family, name: str) -> None:
    invariants.features_equal_reference(family, *prompts_of(family, name))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_is_close(family: Family, dtype: torch.dtype) -> None:
    invariants.low_precision_is_close(family, *prompts_of(family, "one image"), dtype)


@pytest.mark.parametrize("chunks", [(8, 8, 8), (5, 17, 1, 1)])
def test_chunked_prefill_equals_whole(family: Family, chunks: tuple[int, ...]) -> None:
    invariants.chunked_equals_whole(family, *prompts_of(family, "one image"), chunks)


@pytest.mark.parametrize("chunks", [(), (6, 1, 1, 30)])
def test_batch_equals_single(family: Family, chunks: tuple[int, ...]) -> None:
    names = ("text", "one image", "a video", "two images of different sizes")
    invariants.batch_equals_single(family, prompts_of(family, *names), chunks)


def test_packed_units_equal_units_alone(family: Family) -> None:
    invariants.packed_equals_alone(family, prompts_of(family, *WITH_MEDIA))


@pytest.mark.parametrize("name", PROMPTS)
def test_rope_positions_equal_hugging_face(family: Family, saved: SavedModel, name: str) -> None:
    """Frames count on one by one, whatever their times."""
    [prompt] = prompts_of(family, name)
    media = media_inputs(prompt, family.facts)
    expected, _ = saved.reference.model.get_rope_index(torch.tensor([prompt.token_ids]), **media)
    computed = family.model.rope_positions(len(prompt.token_ids), prompt.items)
    assert np.array_equal(computed.positions, expected[:, 0].numpy())
    assert computed.delta == expected[:, 0, -1].max().item() + 1 - len(prompt.token_ids), "as generate counts on"


@pytest.mark.parametrize(
    "layout",
    [Layout(config="nested"), Layout(config="nested", names="transformers5")],
    ids=["hub", "transformers 5"],
)
def test_layouts_load_alike(family: Family, tmp_path: Path, layout: Layout) -> None:
    loaded = load_model(save_qwen2_vl(tmp_path, layout).folder, dtype=torch.float32, device=CPU)
    assert loaded.facts == family.facts
    weights = dict(family.model.named_parameters())
    for name, weight in loaded.model.named_parameters():
        own, other = (w.to_dense() if w.is_mkldnn else w for w in (weight, weights.pop(name)))
        assert torch.equal(own, other), name
    assert not weights


@pytest.mark.parametrize("rank", [0, 3])
def test_every_element_is_loaded_once(saved: SavedModel, rank: int) -> None:
    invariants.every_element_is_loaded_once(open_checkpoint(saved.folder), Group(rank, 4), Group(rank, 4))


@pytest.mark.parametrize(
    ("change", "match"),
    [({"hidden_size": 32}, "hidden_size=32 .* only 64"), ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
     ({"num_heads": 5}, "embed_dim=96 .* does not divide into num_heads=5"),
     ({"num_heads": 16}, "embed_dim=96 .* num_heads=16 heads whose sizes are multiples of 4"),
     ({"mlp_ratio": -1}, "intermediate_size=-96"), ({"embed_dim": 0}, "embed_dim=0")],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)  # fmt: skip
def test_what_can_not_be_honoured_is_refused_by_name(change: dict[str, Any], match: str) -> None:
    raw = qwen2_vl_config(make_tokenizer())
    with pytest.raises(UserError, match=match):
        parse_config({**raw, "vision_config": {**raw["vision_config"], **change}})


@pytest.mark.parametrize("sharding", [(True, False), (False, True)], ids=["text", "tower"])
@pytest.mark.parametrize("size", [2, 4])
def test_sharded_equals_one_rank(
    family: Family, rank_pool: RankPool, size: int, sharding: invariants.Sharding
) -> None:
    prompts = prompts_of(family, "text", "two images of different sizes")
    for dtype in (torch.float32, torch.float64):
        invariants.sharded_equals_whole(family, rank_pool, size, prompts, sharding, dtype)


@pytest.mark.parametrize(
    ("size", "mode"),
    [(size, mode) for size in (2, 3, 4) for mode in ("data", "auto", "weights")],
)
def test_encoder_mode_equals_one_rank(family: Family, rank_pool: RankPool, size: int, mode: EncoderMode) -> None:
    prompts = prompts_of(family, "one image", "a video", "one large image")
    for dtype in (torch.float32, torch.float64):
        invariants.encoder_mode_equals_one_rank(family, rank_pool, size, prompts, mode, dtype)


@pytest.mark.parametrize("exchange", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_row_cuts_equal_one_rank(family: Family, rank_pool: RankPool, size: int, exchange: Exchange) -> None:
    """An uneven cut over all ranks, one between two, and a whole unit."""
    prompts = prompts_of(family, "one large image", "one image", "a ribbon, 28 x 1988 pixels")
    cuts = [[(rank, ((rank + 1) / size) ** 2) for rank in range(size)], [(1, 0.3), (0, 1.0)], [(size - 1, 1.0)]]
    for dtype in (torch.float32, torch.float64):
        invariants.row_cuts_equal_one_rank(family, rank_pool, size, prompts, cuts, [exchange] * 3, dtype)


@pytest.mark.parametrize(("size", "mode"), invariants.STEPS)
def test_several_steps_equal_one(family: Family, rank_pool: RankPool, size: int, mode: EncoderMode) -> None:
    prompts = prompts_of(family, "one image", "a video", "one large image")
    invariants.steps_equal_one_step(family, rank_pool, prompts, size, mode)

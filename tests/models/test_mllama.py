"""Mllama against Hugging Face, and against itself on more ranks and in other batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)

from chiasm.config.engine import EncoderMode
from chiasm.dist.group import Group
from chiasm.models.loader import load_model
from chiasm.models.registry import open_checkpoint
from chiasm.multimodal.sizes import tile_layouts
from chiasm.schema.media import CanvasShape, PixelRef, Unit
from tests import invariants
from tests.checkpoints.common import SavedModel
from tests.checkpoints.mllama import save_mllama
from tests.invariants import CPU, Family
from tests.prompts import Prompt, make_prompt
from tests.ranks import RankPool
from tests.rounding import assert_equal_but_for_rounding

# Images are (1, rows, columns) of tiles.
PROMPTS = {
    "text": [19],
    "one image": [5, (1, 2, 2), 7],
    "image first": [(1, 1, 1), 9],
    "image last": [4, (1, 1, 2)],
    "three images of different sizes": [3, (1, 1, 1), 4, (1, 1, 3), 6, (1, 2, 1), 5],
    "images side by side": [2, (1, 1, 2), (1, 4, 1), 3, (1, 1, 1), (1, 2, 2)],
}
WITH_IMAGES = [name for name in PROMPTS if name != "text"]
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def picture_inputs(prompt: Prompt, tiles: CanvasShape) -> dict[str, Tensor]:
    """What Hugging Face's processor makes of the bytes of all images."""
    count, most = len(prompt.items), tiles.num_tiles
    pixels = torch.zeros(1, count, most, 3, tiles.side * 14, tiles.side * 14)
    mask, ids = torch.zeros(1, count, most, dtype=torch.int64), torch.zeros(1, count, dtype=torch.int64)
    for index, (unit, rows) in enumerate(zip(prompt.units, prompt.pixels, strict=True)):
        num_used = tiles.num_used(unit.grid)
        patches = torch.from_numpy(rows).view(num_used, tiles.side, tiles.side, 3, 14, 14)
        picture = patches.permute(0, 3, 1, 4, 2, 5).reshape(num_used, 3, tiles.side * 14, -1) / 255
        pixels[0, index, :num_used] = (picture - torch.tensor(MEAN)[:, None, None]) / torch.tensor(STD)[:, None, None]
        mask[0, index, :num_used] = 1
        layout = (unit.grid[0] // tiles.side, unit.grid[1] // tiles.side)
        ids[0, index] = 1 + tile_layouts(most).index(layout)
    return {"pixel_values": pixels, "aspect_ratio_mask": mask, "aspect_ratio_ids": ids}


def cross_attention_mask(prompt: Prompt, image_token_id: int, tiles: CanvasShape) -> Tensor:
    """Which tiles each token sees, by Hugging Face's processor: [1, tokens, images, tiles]."""
    seen = get_cross_attention_token_mask(list(prompt.token_ids), image_token_id)
    num_tiles = [tiles.num_used(unit.grid) for unit in prompt.units]
    dense = convert_sparse_cross_attention_mask_to_dense([seen], [num_tiles], tiles.num_tiles, len(prompt.token_ids))
    return torch.from_numpy(dense)


def in_cut_order(states: Tensor, unit: Unit, tiles: CanvasShape) -> Tensor:
    """[tiles, rows that text may see, columns] as a unit's rows are ordered, without those that fill up tiles."""
    used, unused = states[: tiles.num_used(unit.grid)], states[tiles.num_used(unit.grid) :]
    return torch.cat([part for each in (used, unused) for part in (each[:, 1:].flatten(0, 1), each[:, 0])])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> SavedModel:
    return save_mllama(tmp_path_factory.mktemp("mllama"))


@pytest.fixture(scope="module")
def family(saved: SavedModel) -> Family:
    loaded = load_model(saved.folder, dtype=torch.float32, device=CPU)
    reference: Any = saved.reference
    tiles = loaded.facts.encoder.canvas
    assert tiles

    @torch.inference_mode()
    def features(prompt: Prompt) -> Tensor:
        out = reference.model.vision_model(**picture_inputs(prompt, tiles)).last_hidden_state
        projected = reference.model.multi_modal_projector(out)[0]
        return torch.cat([in_cut_order(*pair, tiles) for pair in zip(projected, prompt.units, strict=True)])

    @torch.inference_mode()
    def logits(prompt: Prompt) -> Tensor:
        media = {}
        if prompt.items:
            media = picture_inputs(prompt, tiles)
            media["cross_attention_mask"] = cross_attention_mask(prompt, loaded.facts.image_token_id, tiles)
        return reference(input_ids=torch.tensor([prompt.token_ids]), use_cache=False, **media).logits[0]

    return Family(saved.folder, loaded.facts, loaded.model, features, logits)


def prompts_of(family: Family, *names: str) -> list[Prompt]:
    return [make_prompt(family.facts, PROMPTS[name]) for name in names]


@pytest.mark.parametrize("name", PROMPTS)
def test_logits_equal_hugging_face(family: Family, name: str) -> None:
    invariants.logits_equal_reference(family, *prompts_of(family, name))


@pytest.mark.parametrize("name", WITH_IMAGES)
def test_features_equal_hugging_face(family: Family, name: str) -> None:
    """All rows that text may attend to; those that fill up tiles are behind them."""
    [prompt] = prompts_of(family, name)
    tiles = family.facts.encoder.canvas
    assert tiles
    computed = invariants.encode(family.loaded, [prompt]).split([tiles.unit_rows] * len(prompt.items))
    rows = torch.cat([part[: tiles.num_tiles * tiles.seen_rows] for part in computed])
    assert_equal_but_for_rounding(rows, family.reference_features(prompt))


def test_low_precision_is_close(family: Family) -> None:
    invariants.low_precision_is_close(family, *prompts_of(family, "one image"), torch.bfloat16)


@pytest.mark.parametrize("chunks", [(8, 8, 8), (2, 4, 1, 1), (5, 1, 1, 1)])
def test_chunked_prefill_equals_whole(family: Family, chunks: tuple[int, ...]) -> None:
    for prompt in prompts_of(family, "one image", "three images of different sizes", "images side by side"):
        invariants.chunked_equals_whole(family, prompt, chunks)


@pytest.mark.parametrize("chunks", [(), (6, 1, 1, 30)])
def test_batch_equals_single(family: Family, chunks: tuple[int, ...]) -> None:
    invariants.batch_equals_single(family, prompts_of(family, *PROMPTS), chunks)


def test_packed_units_equal_units_alone(family: Family) -> None:
    invariants.packed_equals_alone(family, prompts_of(family, *WITH_IMAGES))


def test_text_passes_layers_of_cross_attention_by(family: Family, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that see no image cost nothing there, in whatever batch."""
    rows: list[int] = []
    layer = family.model.language_model.cross_layers[0]
    forward = layer.forward
    monkeypatch.setattr(layer, "forward", lambda x, *args: (rows.append(len(x)), forward(x, *args))[1])
    prompts = prompts_of(family, "text", "image first", "text")
    invariants.run_decoder(family.loaded, prompts[::2], dtype=torch.float32)
    assert rows == []
    invariants.run_decoder(family.loaded, prompts, dtype=torch.float32)
    assert rows == [len(prompts[1].token_ids)]


def test_what_is_kept_of_a_unit_has_its_own_size(family: Family) -> None:
    [prompt] = prompts_of(family, "image first")
    kept = family.model.keep(invariants.encode(family.loaded, [prompt]))
    tiles = family.facts.encoder.canvas
    assert tiles
    assert kept.shape == (2, 2, tiles.num_tiles * tiles.seen_rows, 2, 8)
    assert kept.untyped_storage().nbytes() == kept.nbytes


@pytest.mark.parametrize("names", ["hub", "transformers5"])
def test_both_layouts_give_the_weights_of_hugging_face(tmp_path: Path, names: str) -> None:
    saved = save_mllama(tmp_path, names)
    model = load_model(tmp_path, dtype=torch.float32, device=CPU).model
    weights, expected = dict(model.named_parameters()), saved.reference.state_dict()
    pairs = {
        "visual.global_transformer.layers.1.gate_ffn": "model.vision_model.global_transformer.layers.1.gate_ffn",
        "visual.projector.bias": "model.multi_modal_projector.bias",
        "language_model.layers.3.cross_attn.k_norm.weight": "model.language_model.layers.3.cross_attn.k_norm.weight",
        "lm_head.weight": "lm_head.weight",
    }
    for own, other in pairs.items():
        assert torch.equal(weights[own], expected[other]), own


@pytest.mark.parametrize("rank", [0, 3])
def test_every_element_is_loaded_once(saved: SavedModel, rank: int) -> None:
    invariants.every_element_is_loaded_once(open_checkpoint(saved.folder), Group(rank, 4), Group(rank, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sharding", [(True, False), (False, True)], ids=["text", "tower"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_sharded_equals_one_rank(
    family: Family, rank_pool: RankPool, size: int, sharding: invariants.Sharding, dtype: torch.dtype
) -> None:
    if sharding[0] and size == 3:
        pytest.skip("its heads do not divide by 3")
    prompts = prompts_of(family, "text", "three images of different sizes")
    invariants.sharded_equals_whole(family, rank_pool, size, prompts, sharding, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", ["data", "auto", "weights"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_encoder_mode_equals_one_rank(
    family: Family, rank_pool: RankPool, size: int, mode: EncoderMode, dtype: torch.dtype
) -> None:
    prompts = prompts_of(family, "one image", "three images of different sizes", "image first")
    invariants.encoder_mode_equals_one_rank(family, rank_pool, size, prompts, mode, dtype)


@pytest.mark.parametrize("exchange", ["all-gather", "all-to-all"])
@pytest.mark.parametrize("size", [2, 3, 4])
def test_row_cuts_equal_one_rank(family: Family, rank_pool: RankPool, size: int, exchange: str) -> None:
    """Cut within the patches, among class tokens and within the padding."""
    prompts = prompts_of(family, "three images of different sizes", "one image")
    cuts = [
        [(rank, (rank + 1) / size) for rank in range(size)],
        [(size - 1, 1.0)],
        [(0, 0.95), (size - 1, 1.0)],
        [(0, 0.3), (size - 1, 1.0)],
    ]
    invariants.row_cuts_equal_one_rank(family, rank_pool, size, prompts, cuts, [exchange] * 4, torch.float64)


def test_a_unit_has_the_rows_that_hugging_face_computes() -> None:
    tiles = CanvasShape(40, 4)
    assert (tiles.seen_rows, tiles.tile_rows, tiles.unit_rows) == (1601, 1608, 6432)
    unit = tiles.unit("key", (40, 120), PixelRef("", 0, 4800, 588))
    assert (unit.num_rows, unit.num_tokens, unit.num_extra, unit.num_padding) == (6432, 6432, 1632, 6432 - 3 * 1601)
    assert not tiles.has_grid((40, 200))
    assert not tiles.has_grid((40, 41))


@pytest.mark.parametrize(("size", "mode"), invariants.STEPS)
def test_several_steps_equal_one(family: Family, rank_pool: RankPool, size: int, mode: EncoderMode) -> None:
    prompts = prompts_of(family, "one image", "three images of different sizes", "image first")
    invariants.steps_equal_one_step(family, rank_pool, prompts, size, mode)

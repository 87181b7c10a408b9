"""Checkpoints in every layout, and those that are not what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from chiasm.dist.group import Group
from chiasm.errors import UserError
from chiasm.models import loader
from chiasm.models.loader import load_model
from chiasm.models.registry import open_checkpoint
from tests import invariants
from tests.checkpoints.common import Layout, SavedModel, edit_json, save_weights, write_json
from tests.checkpoints.qwen2 import save_qwen2_5_vl
from tests.invariants import CPU
from tests.rounding import assert_equal_but_for_rounding

LAYOUTS = {
    "hub": Layout(),
    "nested config, hub names": Layout(config="nested"),
    "transformers 5": Layout(config="nested", names="transformers5"),
    "flat config, names of transformers 5": Layout(names="transformers5"),
    "three files": Layout(num_shards=3),
    "bfloat16": Layout(dtype=torch.bfloat16),
    "float16": Layout(dtype=torch.float16),
}


def weights_of(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return dict(load_model(folder, dtype=dtype, device=CPU).model.named_parameters())


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_gives_the_weights_of_hugging_face(tmp_path: Path, name: str) -> None:
    saved = save_qwen2_5_vl(tmp_path, LAYOUTS[name])
    weights = weights_of(tmp_path)
    reference = saved.reference.state_dict()
    assert torch.equal(weights["lm_head.weight"], reference["lm_head.weight"])
    prefix = "model.language_model.layers.1.self_attn"
    fused = torch.cat([reference[f"{prefix}.{part}_proj.weight"] for part in "qkv"])
    assert torch.equal(weights["language_model.layers.1.self_attn.qkv_proj.weight"], fused)
    merger = reference["model.visual.merger.mlp.2.bias"]
    assert torch.equal(weights["visual.merger.fc2.bias"], merger)


def test_what_transformers_itself_saves_is_loaded(tmp_path: Path, qwen2_5_vl: SavedModel) -> None:
    qwen2_5_vl.reference.save_pretrained(tmp_path)
    expected, computed = weights_of(qwen2_5_vl.folder), weights_of(tmp_path)
    assert expected.keys() == computed.keys()
    assert all(torch.equal(expected[name], computed[name]) for name in expected)


@pytest.mark.parametrize("has_lm_head", [True, False])
@pytest.mark.parametrize("config", ["flat", "nested"])
def test_tied_embeddings_are_one_weight(tmp_path: Path, has_lm_head: bool, config: Any) -> None:
    saved = save_qwen2_5_vl(tmp_path, Layout(config=config, has_lm_head=has_lm_head), tied=True)
    model = load_model(tmp_path, dtype=torch.float32, device=CPU).model
    assert "lm_head.weight" not in dict(model.named_parameters())
    hidden = torch.randn(2, model.hidden_size)
    assert_equal_but_for_rounding(model.compute_logits(hidden), saved.reference.lm_head(hidden))


def test_memory_has_the_type_asked_for(qwen2_5_vl: SavedModel) -> None:
    weights = weights_of(qwen2_5_vl.folder, torch.bfloat16)
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}
    exact = load_file(qwen2_5_vl.folder / "model.safetensors")["model.norm.weight"]
    assert torch.equal(weights["language_model.norm.weight"], exact.bfloat16())


@pytest.mark.parametrize("rank", [0, 3])
def test_every_element_is_loaded_once(qwen2_5_vl: SavedModel, rank: int) -> None:
    invariants.every_element_is_loaded_once(open_checkpoint(qwen2_5_vl.folder), Group(rank, 4), Group(rank, 4))


# --------------------------------------------------------------------------------------------------------------------
# What is refused


def refuse(folder: Path, match: str, param: str = "model") -> None:
    with pytest.raises(UserError, match=match) as caught:
        load_model(folder, dtype=torch.float32, device=CPU)
    assert caught.value.param == param
    assert str(folder) not in caught.value.message


@pytest.fixture
def folder(tied_qwen2_5_vl: SavedModel) -> Path:
    return tied_qwen2_5_vl.folder


def change_weights(folder: Path, **changes: Tensor | None) -> None:
    """Replace tensors of ``model.safetensors``, add them, or with None leave them out. ``__`` stands for a dot."""
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in changes.items():
        name = name.replace("__", ".")
        tensors.pop(name, None)
        if tensor is not None:
            tensors[name] = tensor
    save_weights(folder, tensors)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_weights(folder, model__layers__1__self_attn__k_proj__bias=None)
    refuse(folder, r"lacks 1 tensors of the model: language_model\.layers\.1\.self_attn\.k_proj\.bias")


def test_leftover_tensors_are_counted_and_the_first_named(folder: Path) -> None:
    extra = {f"model__layers__1__extra_{index:02}": torch.ones(1) for index in range(20)}
    change_weights(folder, **extra)
    refuse(folder, r"20 tensors that the model doesn't have: model\.layers\.1\.extra_00, .*_07 and 12 more\.$")


def test_both_sides_are_told_at_once(folder: Path) -> None:
    change_weights(folder, model__norm__weight=None, model__norm__bias=torch.ones(1))
    refuse(folder, r"doesn't have: model\.norm\.bias, and it lacks 1 .*: language_model\.norm\.weight")


def test_a_tensor_of_another_shape_names_itself(folder: Path) -> None:
    change_weights(folder, model__layers__0__mlp__up_proj__weight=torch.ones(64, 180))
    refuse(
        folder, r"model\.layers\.0\.mlp\.up_proj\.weight has the shape \[64, 180\]; the config makes it \[180, 64\]"
    )


def test_a_tensor_under_both_names_is_refused(folder: Path) -> None:
    change_weights(folder, model__language_model__norm__weight=torch.ones(64))
    refuse(folder, "the same tensor twice: model")


def test_a_tensor_of_integers_is_refused(folder: Path) -> None:
    change_weights(folder, model__norm__weight=torch.ones(64, dtype=torch.int8))
    refuse(folder, r"model\.norm\.weight is of type I8; supported: F32, BF16, F16")


def test_pickled_weights_are_refused(folder: Path) -> None:
    """Threat: remote code and weights (CVE-2025-24357)."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refuse(folder, r"no \.safetensors weights; pickled weights")


def test_a_checkpoint_without_weights_is_refused(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    refuse(folder, r"no \.safetensors weights\.")


def test_a_truncated_file_is_refused(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    refuse(folder, r"weights file model\.safetensors can't be read")


@pytest.mark.parametrize("name", ["model-00002-of-00002.safetensors", "../model.safetensors"])
def test_an_index_that_names_other_files_is_refused(folder: Path, name: str) -> None:
    write_json(folder / "model.safetensors.index.json", {"weight_map": {"model.norm.weight": name}})
    refuse(folder, r"model\.safetensors\.index\.json names files that are not there")


def test_an_index_without_a_map_is_refused(folder: Path) -> None:
    write_json(folder / "model.safetensors.index.json", {"weight_map": []})
    refuse(folder, r"model\.safetensors\.index\.json has no weight_map")


def test_a_tensor_in_two_files_is_refused(folder: Path) -> None:
    save_file({"model.norm.weight": torch.ones(64)}, folder / "more.safetensors")
    refuse(folder, "the same tensor twice")


def test_an_unknown_family_is_refused_with_those_that_are_known(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config.update(model_type="llava"))
    refuse(folder, "model_type 'llava' is not supported; supported: .*qwen2_5_vl")


@pytest.mark.parametrize(
    ("file", "change", "words"),
    [
        ("config.json", {"model_type": []}, "names no model_type"),
        ("config.json", {"vision_config": "x"}, r"vision_config in the checkpoint's config\.json must be an object"),
        (
            "config.json",
            {"text_config": {"rope_scaling": 7}},
            "rope_scaling in the checkpoint's text_config must be an",
        ),
        ("generation_config.json", {"eos_token_id": "x"}, "eos_token_id='x' .* must be whole numbers"),
        ("generation_config.json", {"eos_token_id": [1, 2.5]}, r"eos_token_id=\[1, 2\.5\] .* must be whole numbers"),
        (
            "preprocessor_config.json",
            {"rescale_factor": "x"},
            "rescale_factor of the image processor must be a number",
        ),
        ("preprocessor_config.json", {"min_pixels": None, "size": 7}, "size in the .* must be an object, got 7"),
        ("preprocessor_config.json", {"image_std": [1, 0, 1]}, "image_std of the image processor must not be 0"),
        (
            "preprocessor_config.json",
            {"image_mean": ["x"] * 3},
            "image_mean of the image processor must be three numbers",
        ),
    ],
)
def test_settings_of_a_wrong_type_are_refused_by_name(
    folder: Path, file: str, change: dict[str, Any], words: str
) -> None:
    edit_json(folder / file, lambda settings: settings.update(change))
    refuse(folder, words)


def test_a_quantized_checkpoint_is_refused(folder: Path) -> None:
    edit_json(folder / "config.json", lambda config: config.update(quantization_config={"bits": 4}))
    refuse(folder, "quantized")


def test_ranks_that_do_not_divide_the_heads_are_refused_before_anything_is_read(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="sizes that fit: 1, 2, 4, 8") as caught:
        load_model(folder, dtype=torch.float32, device=CPU, text_group=Group(0, 3))
    assert caught.value.param == "tensor_parallel_size"
    with pytest.raises(UserError, match="sizes that fit: 1, 2, 4, 8") as caught:
        load_model(folder, dtype=torch.float32, device=CPU, vision_group=Group(0, 3))
    assert caught.value.param == "mm_encoder_tp_mode"


def test_slot_names_are_those_of_the_checkpoint() -> None:
    assert loader._slot_name("a.qkv_proj.weight", "k_proj") == "a.k_proj.weight"
    assert loader._slot_name("a.norm.weight", "") == "a.norm.weight"

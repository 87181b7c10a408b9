"""Random weights: the same on every device and in every share, and of a sensible size."""

from __future__ import annotations

import shutil
import zlib
from pathlib import Path

import pytest
import torch

from chiasm.config.checkpoint import resolve_checkpoint
from chiasm.config.engine import EngineConfig, LoadFormat
from chiasm.dist.group import Group
from chiasm.layers.weight import Part
from chiasm.models import dummy_weights
from chiasm.models.dummy_weights import DummyTensor
from chiasm.models.loader import load_model, weight_bytes
from chiasm.models.registry import open_checkpoint
from tests.checkpoints.common import SavedModel
from tests.checkpoints.glm4v import save_glm4v
from tests.checkpoints.llama4 import save_llama4
from tests.checkpoints.mllama import save_mllama
from tests.checkpoints.qwen2 import save_qwen2_5_vl, save_qwen2_vl
from tests.checkpoints.qwen3_vl import save_qwen3_vl
from tests.engine.driven import answers, request, running
from tests.invariants import CPU
from tests.prompts import make_prompt

FAMILIES = {
    "qwen2_vl": save_qwen2_vl,
    "qwen2_5_vl": save_qwen2_5_vl,
    "qwen3_vl": lambda folder: save_qwen3_vl(folder, has_experts=False),
    "qwen3_vl_moe": lambda folder: save_qwen3_vl(folder, has_experts=True),
    "glm4v": save_glm4v,
    "glm4v_moe": lambda folder: save_glm4v(folder, has_experts=True),
    "llama4": save_llama4,
    "mllama": save_mllama,
}


def tensor(*shape: int, name: str = "layers.0.mlp.up_proj.weight", dtype: torch.dtype = torch.float32) -> DummyTensor:
    return DummyTensor(name, Part.whole(*shape), dtype, CPU)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_slice_is_that_of_the_whole(dim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tensor(6, 5, 7)
    whole = made.read(0, 0, 6)
    monkeypatch.setattr(dummy_weights, "_CPU_CHUNK", 11)  # borders of chunks within rows
    for start in range(whole.shape[dim]):
        for length in range(1, whole.shape[dim] - start + 1):
            assert torch.equal(made.read(dim, start, length), whole.narrow(dim, start, length))


def number(name: str, place: int) -> float:
    """The recipe in Python's integers: uniform in [-1, 1), of 24 bits."""
    word = (place + (place >> 32) * 0x45D9F3B + zlib.crc32(name.encode())) % 2**32
    for _ in range(2):
        word = (word ^ word >> 16) * 0x45D9F3B % 2**32
    return (word ^ word >> 16) // 2**8 / 2**23 - 1


def test_numbers_are_those_of_the_recipe() -> None:
    name = "layers.0.mlp.up_proj.weight"
    for start in (0, 2**40 // 3):  # of a tensor with more elements than words have values
        made = tensor(2**40, 3).read(0, start, 4).flatten() * 3**0.5 / 3**0.5
        assert made.tolist() == pytest.approx([number(name, 3 * start + i) for i in range(12)], abs=1e-6)


@pytest.mark.parametrize(
    ("name", "shape", "mean", "deviation"),
    [
        ("layers.0.mlp.up_proj.weight", (400, 900), 0.0, 1 / 30),
        ("layers.0.norm.weight", (9000,), 1.0, 0.1),
        ("layers.0.qkv_proj.bias", (9000,), 0.0, 0.1),
        ("embed_tokens.weight", (400, 900), 0.0, 0.3),
        ("patch_embed.proj.weight", (400, 3, 2, 10, 15), 0.0, 1 / 30),
        ("mlp.experts.down_proj.weight", (4, 100, 900), 0.0, 1 / 30),
    ],
)
def test_mean_and_deviation(name: str, shape: tuple[int, ...], mean: float, deviation: float) -> None:
    made = tensor(*shape, name=name).read(0, 0, shape[0])
    assert float(made.mean()) == pytest.approx(mean, abs=deviation / 20)
    assert float(made.std()) == pytest.approx(deviation, rel=0.03)
    if made.dim() > 1:
        correlation = torch.corrcoef(made.flatten(1)[:4])
        assert float((correlation - torch.eye(4)).abs().max()) < 0.15, "rows are unlike"


def test_names_differ() -> None:
    assert not torch.equal(tensor(9, 9).read(0, 0, 9), tensor(9, 9, name="layers.1.mlp.up_proj.weight").read(0, 0, 9))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_filled_from_its_json_files_alone(family: str, tmp_path: Path) -> None:
    folder = FAMILIES[family](tmp_path).folder
    checkpoint = open_checkpoint(folder)
    groups = {"text_group": Group(1, 2), "vision_group": Group(1, 2)}
    num_bytes = weight_bytes(checkpoint, dtype=torch.float32, device=CPU, **groups)
    (folder / "model.safetensors").unlink()
    assert weight_bytes(checkpoint, dtype=torch.float32, device=CPU, **groups, load_format="dummy") == num_bytes
    whole = dict(
        load_model(checkpoint, dtype=torch.float64, device=CPU, load_format="dummy").model.named_parameters()
    )
    for group in (Group(0, 2), Group(1, 2)):
        model = load_model(
            checkpoint, dtype=torch.float64, device=CPU, text_group=group, vision_group=group, load_format="dummy"
        ).model
        for name, weight in model.named_parameters():
            assert weight.isfinite().all(), name
            if weight.shape == whole[name].shape:
                assert torch.equal(weight, whole[name]), name
            else:
                own = set(weight.flatten().tolist())
                assert own <= set(whole[name].flatten().tolist()) | {0.0}, name


def test_an_engine_says_that_its_weights_are_random(qwen2_5_vl: SavedModel, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(qwen2_5_vl.folder, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = EngineConfig(model=str(folder), load_format="dummy", kv_cache_memory_bytes=2**22)
    with running(config) as core:
        assert "weights: random numbers, so that answers mean nothing (load_format=dummy)" in core.ready.summary
        facts = core.ready.facts
    asked = [request("r", make_prompt(facts, [5, (1, 8, 12), 3]), tmp_path, max_tokens=8)]
    assert len(answers(config, asked)["r"].token_ids) == 8
    with running(EngineConfig(model=str(qwen2_5_vl.folder), kv_cache_memory_bytes=2**22)) as core:
        assert not any("random" in line for line in core.ready.summary)


@pytest.mark.parametrize(("load_format", "has_weights"), [("auto", True), ("safetensors", True), ("dummy", False)])
def test_weights_that_are_not_read_are_not_downloaded(
    load_format: LoadFormat, has_weights: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def download(model: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        asked.extend(allow_patterns)
        return "/folder"

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert resolve_checkpoint("owner/name", load_format=load_format) == Path("/folder")
    assert ("*.safetensors" in asked) == has_weights
    assert "*.json" in asked

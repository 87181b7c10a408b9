"""Names and shapes of the published checkpoints, as Hugging Face's classes have them, fit the models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from transformers.models.llama4.configuration_llama4 import Llama4Config
from transformers.models.llama4.modeling_llama4 import Llama4ForConditionalGeneration
from transformers.models.mllama.configuration_mllama import MllamaConfig
from transformers.models.mllama.modeling_mllama import MllamaForConditionalGeneration

from tests import invariants
from tests.checkpoints.glm4v import GLM_CLASSES
from tests.checkpoints.mllama import hub_name_of_mllama
from tests.checkpoints.qwen2 import QWEN2_CLASSES, hub_name_of_qwen2
from tests.checkpoints.qwen3_vl import QWEN3_VL_CLASSES
from tests.published.files import needs_published, published_tensors
from tests.published.glm import GLM
from tests.published.llama import LLAMA4, MLLAMA
from tests.published.qwen import QWEN2_VL, QWEN3_VL

Shapes = dict[str, tuple[int, ...]]

LAYOUTS = pytest.mark.parametrize("layout", ["hub", "transformers5"])


def shapes_of(config: Any, model: Any) -> Shapes:
    """Names and shapes of transformers' own model, which takes no memory here."""
    with torch.device("meta"):
        tensors = model._from_config(config, dtype=torch.bfloat16).state_dict()
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def read_by(kind: Any, raw: dict[str, Any]) -> Any:
    """A config as transformers reads it, which changes what it is given."""
    return kind(**json.loads(json.dumps(raw)))


def as_written(config: Any) -> dict[str, Any]:
    """``config.json`` as transformers writes it."""
    return {**json.loads(config.to_json_string(use_diff=False)), "transformers_version": "5.24.0"}


@LAYOUTS
@pytest.mark.parametrize("name", QWEN3_VL)
def test_names_and_shapes_fit(name: str, layout: str) -> None:
    raw = QWEN3_VL[name]
    kind, model = QWEN3_VL_CLASSES[raw["model_type"]]
    config = read_by(kind, raw)
    shapes = shapes_of(config, model)
    if layout == "transformers5":
        raw = as_written(config)
    else:  # experts as [E, in, out]
        shapes = {name: (x[0], x[2], x[1]) if ".experts." in name else x for name, x in shapes.items()}
    invariants.names_and_shapes_fit(raw, shapes)


@LAYOUTS
@pytest.mark.parametrize("name", GLM)
def test_names_and_shapes_of_glm_fit(name: str, layout: str) -> None:
    raw = GLM[name]
    kind, model = GLM_CLASSES[raw["model_type"]]
    config = read_by(kind, raw)
    shapes = shapes_of(config, model)
    if layout == "transformers5":
        raw = as_written(config)
    else:
        shapes = dict(each for name, shape in shapes.items() for each in _experts_apart(name, shape))
    invariants.names_and_shapes_fit(raw, shapes)


def _experts_apart(name: str, shape: tuple[int, ...]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The matrices of each expert by itself, gate and up too."""
    path, _, matrix = name.rpartition(".experts.")
    if not path:
        yield name, shape
        return
    num_experts, size, inner = shape
    parts = ("gate_proj", "up_proj") if matrix == "gate_up_proj" else (matrix,)
    for expert in range(num_experts):
        for part in parts:
            yield f"{path}.experts.{expert}.{part}.weight", (size // len(parts), inner)


def _check_layout(raw: dict[str, Any], config: Any, model: Any, layout: str, hub_name: Callable[[str], str]) -> None:
    """Names and shapes of a published checkpoint, as the hub has them or as transformers 5 writes them."""
    shapes = shapes_of(config, model)
    if layout == "transformers5":
        raw = as_written(config)
    else:
        shapes = {hub_name(name): shape for name, shape in shapes.items()}
    invariants.names_and_shapes_fit(raw, shapes)


@LAYOUTS
@pytest.mark.parametrize("name", QWEN2_VL)
def test_names_and_shapes_of_qwen2_fit(name: str, layout: str) -> None:
    raw = QWEN2_VL[name]
    kind, model = QWEN2_CLASSES[raw["model_type"]]
    _check_layout(raw, read_by(kind, raw), model, layout, hub_name_of_qwen2)


@LAYOUTS
@pytest.mark.parametrize("name", LLAMA4)
def test_names_and_shapes_of_llama4_fit(name: str, layout: str) -> None:
    """The names of both layouts are the same; what they make of the config differs."""
    raw = LLAMA4[name]
    config = read_by(Llama4Config, raw)
    _check_layout(raw, config, Llama4ForConditionalGeneration, layout, hub_name=lambda name: name)


@LAYOUTS
@pytest.mark.parametrize("name", MLLAMA)
def test_names_and_shapes_of_mllama_fit(name: str, layout: str) -> None:
    raw = MLLAMA[name]
    config = read_by(MllamaConfig, raw)
    _check_layout(raw, config, MllamaForConditionalGeneration, layout, hub_name_of_mllama)


# --------------------------------------------------------------------------------------------------------------------
# What was found in the published files themselves


@needs_published
@pytest.mark.parametrize(
    "name", ["Qwen3-VL-8B-Instruct", "Qwen3-VL-30B-A3B-Instruct", "Qwen3-VL-235B-A22B-Instruct", "GLM-4.5V"]
)
def test_the_tensors_on_the_hub_fit(name: str) -> None:
    shapes = {tensor: shape for tensor, shape in published_tensors(name).items() if shape is not None}
    assert shapes
    invariants.names_and_shapes_fit({**QWEN3_VL, **GLM}[name], shapes)


@needs_published
@pytest.mark.parametrize("name", ["Qwen2-VL-7B-Instruct", "Qwen2.5-VL-7B-Instruct"])
def test_the_names_on_the_hub_are_those_of_transformers_in_the_hubs_layout(name: str) -> None:
    raw = QWEN2_VL[name]
    kind, model = QWEN2_CLASSES[raw["model_type"]]
    assert set(published_tensors(name)) == set(map(hub_name_of_qwen2, shapes_of(read_by(kind, raw), model)))

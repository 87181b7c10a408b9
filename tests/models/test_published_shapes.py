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

_TOWER_24 = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]}
_TOWER_27 = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}
# hidden size, size of the MLP, layers, heads, key-value heads, size of an expert (0: none), tied embeddings, tower
QWEN3_VL = {
    "Qwen3-VL-2B": (2048, 6144, 28, 16, 8, 0, True, _TOWER_24),
    "Qwen3-VL-4B": (2560, 9728, 36, 32, 8, 0, True, _TOWER_24),
    "Qwen3-VL-8B": (4096, 12288, 36, 32, 8, 0, False, _TOWER_27),
    "Qwen3-VL-32B": (5120, 25600, 64, 64, 8, 0, False, _TOWER_27),
    "Qwen3-VL-30B-A3B": (2048, 6144, 48, 32, 4, 768, False, _TOWER_27),
    "Qwen3-VL-235B-A22B": (4096, 12288, 94, 64, 4, 1536, False, _TOWER_27),
}


def qwen3_vl(name: str) -> dict[str, Any]:
    """``config.json`` as the hub has it."""
    size, mlp_size, num_layers, num_heads, num_kv_heads, expert_size, is_tied, tower = QWEN3_VL[name]
    model_type = "qwen3_vl_moe" if expert_size else "qwen3_vl"
    experts = {"moe_intermediate_size": expert_size, "num_experts": 128, "num_experts_per_tok": 8}
    return {
        "model_type": model_type,
        "tie_word_embeddings": is_tied,
        "transformers_version": "4.57.0.dev0",
        "text_config": {
            "hidden_size": size,
            "intermediate_size": mlp_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": num_kv_heads,
            "head_dim": 128,
            "tie_word_embeddings": is_tied,
            "rope_theta": 5000000,
            "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
            **(experts if expert_size else {}),
        },
        "vision_config": {"model_type": model_type, "out_hidden_size": size, **tower},
    }


@pytest.mark.parametrize("layout", ["hub", "transformers5"])
@pytest.mark.parametrize("name", QWEN3_VL)
def test_names_and_shapes_fit(name: str, layout: str) -> None:
    raw = qwen3_vl(name)
    kind, model = QWEN3_VL_CLASSES[raw["model_type"]]
    config = kind(**json.loads(json.dumps(raw)))
    with torch.device("meta"):
        tensors = model._from_config(config, dtype=torch.bfloat16).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if layout == "transformers5":
        raw = {**json.loads(config.to_json_string(use_diff=False)), "transformers_version": "5.24.0"}
    else:  # experts as [E, in, out]
        shapes = {name: (x[0], x[2], x[1]) if ".experts." in name else x for name, x in shapes.items()}
    invariants.names_and_shapes_fit(raw, shapes)


_GLM_TEXT = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000.0,
    "rope_scaling": {"rope_type": "default", "mrope_section": [8, 12, 12]},
}
_GLM_TOWER = {"hidden_size": 1536, "depth": 24, "num_heads": 12, "out_hidden_size": 4096}
GLM = {
    "GLM-4.1V-9B-Thinking": {
        "model_type": "glm4v",
        "text_config": {
            **_GLM_TEXT,
            "intermediate_size": 13696,
            "num_hidden_layers": 40,
            "num_attention_heads": 32,
            "num_key_value_heads": 2,
        },
        "vision_config": {**_GLM_TOWER, "intermediate_size": 13696},
    },
    "GLM-4.5V": {
        "model_type": "glm4v_moe",
        "text_config": {
            **_GLM_TEXT,
            "intermediate_size": 10944,
            "num_hidden_layers": 46,
            "num_attention_heads": 96,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "first_k_dense_replace": 1,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
        },
        "vision_config": {**_GLM_TOWER, "intermediate_size": 10944},
    },
}


@pytest.mark.parametrize("layout", ["hub", "transformers5"])
@pytest.mark.parametrize("name", GLM)
def test_names_and_shapes_of_glm_fit(name: str, layout: str) -> None:
    raw = GLM[name]
    kind, model = GLM_CLASSES[raw["model_type"]]
    config = kind(**json.loads(json.dumps(raw)))
    with torch.device("meta"):
        shapes = {
            name: tuple(x.shape) for name, x in model._from_config(config, dtype=torch.bfloat16).state_dict().items()
        }
    if layout == "transformers5":
        raw = json.loads(config.to_json_string(use_diff=False))
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


# hidden size, size of the MLP, layers, heads, key-value heads, vocabulary, tied embeddings
QWEN2_VL = {
    "Qwen2-VL-2B": (1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2-VL-7B": (3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2-VL-72B": (8192, 29568, 80, 64, 8, 152064, False),
    "Qwen2.5-VL-3B": (2048, 11008, 36, 16, 2, 151936, True),
    "Qwen2.5-VL-7B": (3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2.5-VL-32B": (5120, 27648, 64, 40, 8, 152064, False),
    "Qwen2.5-VL-72B": (8192, 29568, 80, 64, 8, 152064, False),
}


def qwen2_vl(name: str) -> dict[str, Any]:
    """``config.json`` as the hub has it."""
    size, mlp_size, num_layers, num_heads, num_kv_heads, vocab_size, is_tied = QWEN2_VL[name]
    model_type, tower = "qwen2_vl", {"depth": 32, "embed_dim": 1280, "hidden_size": size}
    if name.startswith("Qwen2.5"):
        inner_size = 3420 if size < 5000 else 3456
        tower = {"depth": 32, "hidden_size": 1280, "intermediate_size": inner_size, "out_hidden_size": size}
        model_type = "qwen2_5_vl"
    return {
        "model_type": model_type,
        "hidden_size": size,
        "intermediate_size": mlp_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "vocab_size": vocab_size,
        "tie_word_embeddings": is_tied,
        "rope_theta": 1000000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
        "use_sliding_window": False,
        "vision_config": tower,
    }


def _check_layout(raw: dict[str, Any], config: Any, model: Any, layout: str, hub_name: Callable[[str], str]) -> None:
    """Names and shapes of a published checkpoint, as the hub has them or as transformers 5 writes them."""
    with torch.device("meta"):
        tensors = model._from_config(config, dtype=torch.bfloat16).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if layout == "transformers5":
        raw = json.loads(config.to_json_string(use_diff=False))
    else:
        shapes = {hub_name(name): shape for name, shape in shapes.items()}
    invariants.names_and_shapes_fit(raw, shapes)


@pytest.mark.parametrize("layout", ["hub", "transformers5"])
@pytest.mark.parametrize("name", QWEN2_VL)
def test_names_and_shapes_of_qwen2_fit(name: str, layout: str) -> None:
    raw = qwen2_vl(name)
    kind, model = QWEN2_CLASSES[raw["model_type"]]
    config = kind(**json.loads(json.dumps(raw)))
    _check_layout(raw, config, model, layout, hub_name_of_qwen2)


_LLAMA4_TEXT = {
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 202048,
    "num_experts_per_tok": 1,
    "rope_theta": 500000.0,
    "no_rope_layers": [],
    "attention_chunk_size": 8192,
}
_LONG = {
    "factor": 16.0,
    "high_freq_factor": 1.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
LLAMA4 = {
    "Llama-4-Scout-17B-16E-Instruct": {
        "num_local_experts": 16,
        "interleave_moe_layer_step": 1,
        "use_qk_norm": True,
        "max_position_embeddings": 10485760,
        "rope_scaling": _LONG,
    },
    "Llama-4-Maverick-17B-128E-Instruct": {
        "num_local_experts": 128,
        "interleave_moe_layer_step": 2,
        "use_qk_norm": False,
        "max_position_embeddings": 1048576,
        "rope_scaling": None,
    },
}
_LLAMA4_TOWER = {
    "hidden_size": 1408,
    "intermediate_size": 5632,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "vision_output_dim": 4096,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
    "rope_theta": 10000,
}


def llama4(name: str) -> dict[str, Any]:
    """``config.json`` as the hub has it."""
    text = {**_LLAMA4_TEXT, **LLAMA4[name]}
    return {"model_type": "llama4", "text_config": text, "vision_config": _LLAMA4_TOWER}


@pytest.mark.parametrize("layout", ["hub", "transformers5"])
@pytest.mark.parametrize("name", LLAMA4)
def test_names_and_shapes_of_llama4_fit(name: str, layout: str) -> None:
    """The names of both layouts are the same; what they make of the config differs."""
    raw = llama4(name)
    config = Llama4Config(**json.loads(json.dumps(raw)))
    with torch.device("meta"):
        tensors = Llama4ForConditionalGeneration._from_config(config, dtype=torch.bfloat16).state_dict()
    if layout == "transformers5":
        raw = json.loads(config.to_json_string(use_diff=False))
    invariants.names_and_shapes_fit(raw, {name: tuple(tensor.shape) for name, tensor in tensors.items()})


# hidden size, size of the MLP, layers, heads, layers of cross-attention, side of a tile
MLLAMA = {
    "Llama-3.2-11B-Vision": (4096, 14336, 40, 32, range(3, 40, 5), 448),
    "Llama-3.2-11B-Vision-Instruct": (4096, 14336, 40, 32, range(3, 40, 5), 560),
    "Llama-3.2-90B-Vision": (8192, 28672, 100, 64, range(3, 100, 5), 560),
    "Llama-3.2-90B-Vision-Instruct": (8192, 28672, 100, 64, range(3, 100, 5), 560),
}


def mllama(name: str) -> dict[str, Any]:
    """``config.json`` as the hub has it."""
    size, mlp_size, num_layers, num_heads, cross_layers, image_size = MLLAMA[name]
    rope = {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    return {
        "model_type": "mllama",
        "image_token_index": 128256,
        "text_config": {
            "model_type": "mllama_text_model",
            "hidden_size": size,
            "intermediate_size": mlp_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": 8,
            "cross_attention_layers": list(cross_layers),
            "vocab_size": 128256,
            "rope_theta": 500000.0,
            "rope_scaling": rope,
        },
        "vision_config": {
            "model_type": "mllama_vision_model",
            "hidden_size": 1280,
            "intermediate_size": 5120,
            "num_hidden_layers": 32,
            "num_global_layers": 8,
            "attention_heads": 16,
            "vision_output_dim": 7680,
            "image_size": image_size,
            "intermediate_layers_indices": [3, 7, 15, 23, 30],
            "max_num_tiles": 4,
            "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
        },
    }


@pytest.mark.parametrize("layout", ["hub", "transformers5"])
@pytest.mark.parametrize("name", MLLAMA)
def test_names_and_shapes_of_mllama_fit(name: str, layout: str) -> None:
    raw = mllama(name)
    config = MllamaConfig(**json.loads(json.dumps(raw)))
    _check_layout(raw, config, MllamaForConditionalGeneration, layout, hub_name_of_mllama)

"""Names and shapes of the published checkpoints, as Hugging Face's classes have them, fit the models."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests import invariants
from tests.checkpoints import QWEN3_VL_CLASSES

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

"""Write a random checkpoint of a family with about 150 million parameters, for benchmarks and comparisons.

python -m bench.make_checkpoint FOLDER [--family qwen2_5_vl]

Proportions within a layer are about those of a published model of the family. As in published models of this size,
the tower has a third to two thirds of the parameters.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from tests.checkpoints.common import SavedModel
from tests.checkpoints.glm4v import save_glm4v
from tests.checkpoints.llama4 import save_llama4
from tests.checkpoints.mllama import save_mllama
from tests.checkpoints.qwen2 import save_qwen2_5_vl, save_qwen2_vl
from tests.checkpoints.qwen3_vl import save_qwen3_vl

_VOCABULARY = 4096
_QWEN2_TEXT = {
    "vocab_size": _VOCABULARY, "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12,
    "num_attention_heads": 8, "num_key_value_heads": 2, "rope_scaling": {"mrope_section": [8, 12, 12]},
}  # fmt: skip
_QWEN3_TEXT = {
    "vocab_size": _VOCABULARY, "hidden_size": 512, "intermediate_size": 1536, "num_attention_heads": 8,
    "num_key_value_heads": 2, "head_dim": 64, "rope_scaling": {"mrope_section": [12, 10, 10]},
}  # fmt: skip
_QWEN3_TOWER = {
    "depth": 9, "hidden_size": 768, "intermediate_size": 2864, "num_heads": 12, "out_hidden_size": 512,
    "deepstack_visual_indexes": [2, 5, 8], "num_position_embeddings": 2304,
}  # fmt: skip
_GLM_TEXT = {
    "vocab_size": _VOCABULARY, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 2,
    "rope_scaling": {"mrope_section": [4, 6, 6]},
}  # fmt: skip
_GLM_TOWER = {"depth": 12, "hidden_size": 512, "num_heads": 8, "out_hidden_size": 1024, "image_size": 336}


def _qwen2_5_vl(folder: Path) -> SavedModel:
    tower = {
        "depth": 12, "hidden_size": 768, "num_heads": 12, "intermediate_size": 2048, "out_hidden_size": 512,
        "fullatt_block_indexes": [3, 7, 11],
    }  # fmt: skip
    return save_qwen2_5_vl(folder, changes={**_QWEN2_TEXT, "vision_config": tower})


def _qwen2_vl(folder: Path) -> SavedModel:
    tower = {"depth": 12, "embed_dim": 768, "mlp_ratio": 4, "num_heads": 12, "hidden_size": 512}
    return save_qwen2_vl(folder, changes={**_QWEN2_TEXT, "vision_config": tower})


def _qwen3_vl(folder: Path) -> SavedModel:
    changes = {"text_config": {**_QWEN3_TEXT, "num_hidden_layers": 12}, "vision_config": _QWEN3_TOWER}
    return save_qwen3_vl(folder, has_experts=False, changes=changes)


def _qwen3_vl_moe(folder: Path) -> SavedModel:
    experts = {"mlp_only_layers": [], "num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 192}
    text = {**_QWEN3_TEXT, **experts, "num_hidden_layers": 8}
    return save_qwen3_vl(folder, has_experts=True, changes={"text_config": text, "vision_config": _QWEN3_TOWER})


def _glm4v(folder: Path) -> SavedModel:
    text = {**_GLM_TEXT, "intermediate_size": 3424, "num_hidden_layers": 7}
    tower = {**_GLM_TOWER, "intermediate_size": 3424}
    return save_glm4v(folder, changes={"text_config": text, "vision_config": tower})


def _glm4v_moe(folder: Path) -> SavedModel:
    experts = {
        "head_dim": 128, "n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 352,
        "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "rope_scaling": {"mrope_section": [8, 12, 12]},
    }  # fmt: skip
    text = {**_GLM_TEXT, **experts, "intermediate_size": 2736, "num_hidden_layers": 5}
    tower = {**_GLM_TOWER, "intermediate_size": 2736}
    return save_glm4v(folder, has_experts=True, changes={"text_config": text, "vision_config": tower})


def _llama4(folder: Path) -> SavedModel:
    text = {
        "vocab_size": _VOCABULARY, "hidden_size": 640, "intermediate_size": 512, "intermediate_size_mlp": 1024,
        "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64,
        "num_local_experts": 8, "no_rope_layers": [1, 1, 1, 0] * 2, "attention_chunk_size": 128, "floor_scale": 128,
    }  # fmt: skip
    tower = {
        "image_size": 336, "hidden_size": 704, "intermediate_size": 2816, "num_hidden_layers": 12,
        "num_attention_heads": 8, "projector_input_dim": 1024, "projector_output_dim": 1024,
        "vision_output_dim": 1024,
    }  # fmt: skip
    return save_llama4(folder, changes={"text_config": text, "vision_config": tower})


def _mllama(folder: Path) -> SavedModel:
    text = {
        "hidden_size": 640, "intermediate_size": 2240, "num_hidden_layers": 14, "cross_attention_layers": [3, 8, 13],
        "num_attention_heads": 10, "num_key_value_heads": 2,
    }  # fmt: skip
    tower = {
        "image_size": 224, "hidden_size": 640, "intermediate_size": 2560, "num_hidden_layers": 8,
        "num_global_layers": 2, "attention_heads": 8, "intermediate_layers_indices": [1, 3, 4, 5, 7],
        "vision_output_dim": 6 * 640,
    }  # fmt: skip
    return save_mllama(folder, changes={"text_config": text, "vision_config": tower})


FAMILIES: dict[str, Callable[[Path], SavedModel]] = {
    "glm4v": _glm4v,
    "glm4v_moe": _glm4v_moe,
    "llama4": _llama4,
    "mllama": _mllama,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen2_vl": _qwen2_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl_moe,
}
"""Each writes a checkpoint into a folder."""


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--family", choices=FAMILIES, default="qwen2_5_vl")
    options = parser.parse_args()
    model = FAMILIES[options.family](options.folder).reference
    weights = {name: weight.numel() / 1e6 for name, weight in model.named_parameters()}
    tower = sum(size for name, size in weights.items() if "vis" in name or "projector" in name)
    print(f"{options.folder}: {sum(weights.values()):.0f} million parameters, {tower:.0f} of them the tower's")


if __name__ == "__main__":
    main()

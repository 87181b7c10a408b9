"""Small random checkpoints of Qwen3-VL, dense and with experts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeConfig
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration

from tests.checkpoints.common import (
    IMAGE_PROCESSOR,
    SPECIAL_TOKENS,
    SavedModel,
    make_tokenizer,
    merged,
    randomise,
    save_tokenizer,
    save_weights,
    write_json,
)

QWEN3_IMAGE_PROCESSOR = {
    **{key: value for key, value in IMAGE_PROCESSOR.items() if key not in ("min_pixels", "max_pixels")},
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 16,
    "size": {"shortest_edge": 4096, "longest_edge": 262144},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


QWEN3_VL_CLASSES: dict[str, tuple[Any, Any]] = {
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration),
    "qwen3_vl_moe": (Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration),
}


def qwen3_vl_config(tokenizer: Tokenizer, *, has_experts: bool, tied: bool = False) -> dict[str, Any]:
    """``config.json`` of a small Qwen3-VL as the hub has it.

    Shards of the MLPs, the experts and the vocabulary are uneven on 4 ranks; heads are larger than their share of the
    hidden size; with experts one layer of the language model has none.
    """
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    model_type = "qwen3_vl_moe" if has_experts else "qwen3_vl"
    experts = {
        "decoder_sparse_step": 1,
        "mlp_only_layers": [1],
        "moe_intermediate_size": 36,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
    }
    text = {
        "model_type": f"{model_type}_text",
        "vocab_size": tokenizer.get_vocab_size() + 3,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "hidden_size": 64,
        "intermediate_size": 180,
        "num_hidden_layers": 3,
        "num_attention_heads": 12 if has_experts else 8,
        "num_key_value_heads": 1 if has_experts else 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000000,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [3, 3, 2], "rope_type": "default"},
        "tie_word_embeddings": tied,
        **(experts if has_experts else {}),
    }
    vision = {
        "model_type": model_type,
        "depth": 4,
        "hidden_size": 96,
        "num_heads": 12,
        "intermediate_size": 90,
        "deepstack_visual_indexes": [0, 2],
        "num_position_embeddings": 49,
        "out_hidden_size": 64,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return {
        "architectures": ["Qwen3VLMoeForConditionalGeneration" if has_experts else "Qwen3VLForConditionalGeneration"],
        "model_type": model_type,
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "tie_word_embeddings": tied,
        "transformers_version": "4.57.0.dev0",
        "text_config": text,
        "vision_config": vision,
    }


def save_qwen3_vl(
    folder: Path,
    names: Literal["hub", "transformers5"] = "hub",
    *,
    has_experts: bool,
    tied: bool = False,
    changes: Mapping[str, Any] = {},
) -> SavedModel:
    """Write a small random Qwen3-VL checkpoint; the names are alike, the config and the experts' matrices are not."""
    tokenizer = make_tokenizer()
    raw = merged(qwen3_vl_config(tokenizer, has_experts=has_experts, tied=tied), changes)
    kind, model = QWEN3_VL_CLASSES[raw["model_type"]]
    reference = model._from_config(kind(**json.loads(json.dumps(raw))), attn_implementation="eager").eval()
    randomise(reference, 0, torch.float32)
    folder.mkdir(parents=True, exist_ok=True)
    if names == "transformers5":
        reference.save_pretrained(folder)
    else:
        write_json(folder / "config.json", raw)
        tensors = reference.state_dict()
        experts = [name for name in tensors if ".experts." in name]
        save_weights(folder, {**tensors, **{name: tensors[name].transpose(1, 2) for name in experts}})
    write_json(folder / "generation_config.json", {"eos_token_id": raw["text_config"]["eos_token_id"]})
    write_json(folder / "preprocessor_config.json", QWEN3_IMAGE_PROCESSOR)
    save_tokenizer(folder, tokenizer)
    return SavedModel(folder, reference)

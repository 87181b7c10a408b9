"""Small random checkpoints of Qwen2-VL and Qwen2.5-VL."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLForConditionalGeneration

from tests.checkpoints.common import (
    HUB_LAYOUT,
    IMAGE_PROCESSOR,
    SPECIAL_TOKENS,
    Layout,
    SavedModel,
    make_tokenizer,
    merged,
    randomise,
    save_tokenizer,
    save_weights,
    write_json,
)

QWEN2_CLASSES: dict[str, tuple[Any, Any]] = {
    "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration),
    "qwen2_vl": (Qwen2VLConfig, Qwen2VLForConditionalGeneration),
}


def qwen2_5_vl_config(tokenizer: Tokenizer, *, tied: bool = False, **text: Any) -> dict[str, Any]:
    """``config.json`` of a small Qwen2.5-VL in the hub's flat form.

    The sizes are chosen to be awkward: shards of the MLPs and of the vocabulary are uneven on 4 ranks, 4 ranks share
    2 key-value heads, and windows of the tower have edges.
    """
    ids = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 180,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "rope_scaling": {"type": "mrope", "mrope_section": [1, 1, 2]},
    }
    vision = {
        "depth": 4,
        "hidden_size": 64,
        "num_heads": 8,
        "intermediate_size": 90,
        "fullatt_block_indexes": [1, 3],
        "window_size": 112,
        "out_hidden_size": 64,
        "hidden_act": "silu",
        "in_chans": 3,
        "patch_size": 14,
        "spatial_patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "tokens_per_second": 2,
        "model_type": "qwen2_5_vl",
    }
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vocab_size": tokenizer.get_vocab_size() + 3,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "use_sliding_window": False,
        "sliding_window": 4096,
        "max_window_layers": 3,
        "tie_word_embeddings": tied,
        "vision_config": vision,
        **sizes,
        **text,
    }


def save_qwen2_5_vl(
    folder: Path, layout: Layout = HUB_LAYOUT, *, tied: bool = False, seed: int = 0, changes: Mapping[str, Any] = {}
) -> SavedModel:
    """Write a small random Qwen2.5-VL checkpoint with tokenizer, chat template and processor."""
    return _save_qwen2(folder, merged(qwen2_5_vl_config(make_tokenizer(), tied=tied), changes), layout, seed)


def qwen2_vl_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """``config.json`` of a small Qwen2-VL in the hub's flat form; its language model is that of Qwen2.5-VL."""
    vision = {
        "depth": 3,
        "embed_dim": 96,
        "mlp_ratio": 3,
        "num_heads": 12,
        "in_chans": 3,
        "hidden_size": 64,
        "hidden_act": "quick_gelu",
        "patch_size": 14,
        "spatial_merge_size": 2,
        "spatial_patch_size": 14,
        "temporal_patch_size": 2,
        "model_type": "qwen2_vl",
    }
    own = {"architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "vision_config": vision}
    return {**qwen2_5_vl_config(tokenizer), **own}


def save_qwen2_vl(folder: Path, layout: Layout = HUB_LAYOUT, *, changes: Mapping[str, Any] = {}) -> SavedModel:
    """Write a small random Qwen2-VL checkpoint with tokenizer, chat template and processor."""
    return _save_qwen2(folder, merged(qwen2_vl_config(make_tokenizer()), changes), layout)


def _save_qwen2(folder: Path, raw: dict[str, Any], layout: Layout, seed: int = 0) -> SavedModel:
    kind, model = QWEN2_CLASSES[raw["model_type"]]
    config = kind(**json.loads(json.dumps(raw)))
    reference = model._from_config(config, attn_implementation="eager").eval()
    randomise(reference, seed, layout.dtype)
    folder.mkdir(parents=True, exist_ok=True)
    if layout.config == "flat":
        write_json(folder / "config.json", raw)
    else:
        config.save_pretrained(folder)
    tensors = reference.state_dict()
    if layout.names == "hub":
        tensors = {hub_name_of_qwen2(name): tensor for name, tensor in tensors.items()}
    if not layout.has_lm_head:
        del tensors["lm_head.weight"]
    save_weights(folder, {name: tensor.to(layout.dtype) for name, tensor in tensors.items()}, layout.num_shards)
    write_json(folder / "generation_config.json", {"eos_token_id": [raw["eos_token_id"], raw["bos_token_id"]]})
    write_json(folder / "preprocessor_config.json", IMAGE_PROCESSOR)
    save_tokenizer(folder, make_tokenizer())
    return SavedModel(folder, reference)


def hub_name_of_qwen2(name: str) -> str:
    """What the hub's checkpoints call a tensor of transformers 5."""
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")

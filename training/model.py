"""The chart reader's shape, as Hugging Face's own Qwen2.5-VL classes take it."""

from __future__ import annotations

from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLForConditionalGeneration

WIDTH, HEADS, KV_HEADS, MLP, LAYERS = 192, 4, 2, 512, 4
TOWER_WIDTH, TOWER_HEADS, TOWER_MLP, TOWER_DEPTH = 160, 4, 432, 4
FULL_ATTENTION = (1, 3)
WINDOW = 112
PATCH = 14
INIT_STD = 0.02
ROPE_THETA = (
    10000.0  # most of a head must hardly turn, or a word in a question does not match its like in the picture
)


def raw_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """``config.json`` in the hub's flat form."""
    ids = {name: tokenizer.token_to_id(f"<|{name}|>") for name in ("image_pad", "video_pad", "im_end", "endoftext")}
    section = WIDTH // HEADS // 2 // 6
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vocab_size": tokenizer.get_vocab_size(),
        "hidden_size": WIDTH,
        "intermediate_size": MLP,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": ROPE_THETA,
        "rope_scaling": {"type": "mrope", "mrope_section": [2 * section, 2 * section, 2 * section]},
        "use_sliding_window": False,
        "tie_word_embeddings": True,
        "initializer_range": INIT_STD,
        "bos_token_id": ids["endoftext"],
        "eos_token_id": ids["im_end"],
        "image_token_id": ids["image_pad"],
        "video_token_id": ids["video_pad"],
        "vision_start_token_id": tokenizer.token_to_id("<|vision_start|>"),
        "vision_end_token_id": tokenizer.token_to_id("<|vision_end|>"),
        "vision_token_id": tokenizer.token_to_id("<|vision_pad|>"),
        "vision_config": {
            "model_type": "qwen2_5_vl",
            "depth": TOWER_DEPTH,
            "hidden_size": TOWER_WIDTH,
            "num_heads": TOWER_HEADS,
            "intermediate_size": TOWER_MLP,
            "out_hidden_size": WIDTH,
            "fullatt_block_indexes": list(FULL_ATTENTION),
            "window_size": WINDOW,
            "hidden_act": "silu",
            "in_chans": 3,
            "patch_size": PATCH,
            "spatial_patch_size": PATCH,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "tokens_per_second": 2,
        },
    }


def build(raw: dict[str, Any], seed: int) -> Any:
    """A model with fresh weights."""
    torch.manual_seed(seed)
    config = Qwen2_5_VLConfig(**raw)
    make: Any = Qwen2_5_VLForConditionalGeneration._from_config
    model = make(config, attn_implementation="sdpa").float()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=INIT_STD)
            if isinstance(module, nn.Conv3d):
                nn.init.normal_(module.weight, std=INIT_STD)
    model.tie_weights()
    return model

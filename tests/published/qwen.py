"""``config.json`` and the like of Qwen2-VL, Qwen2.5-VL and Qwen3-VL: what the models read of it."""

from __future__ import annotations

from typing import Any

QWEN_TOKENS = {
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "image_token_id": 151655,
    "video_token_id": 151656,
}
QWEN_GENERATION = {"eos_token_id": [151645, 151643]}

_QWEN2_TEXT = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "use_sliding_window": False,
    "sliding_window": 32768,
    "eos_token_id": 151645,
    "vision_token_id": 151654,
    **QWEN_TOKENS,
}
_QWEN2_TOWER = {
    "depth": 32,
    "embed_dim": 1280,
    "mlp_ratio": 4,
    "num_heads": 16,
    "in_chans": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "spatial_patch_size": 14,
    "temporal_patch_size": 2,
}
_QWEN2_5_TOWER = {
    "depth": 32,
    "hidden_act": "silu",
    "hidden_size": 1280,
    "intermediate_size": 3420,
    "num_heads": 16,
    "in_chans": 3,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "spatial_patch_size": 14,
    "temporal_patch_size": 2,
    "tokens_per_second": 2,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}


def _qwen2(
    size: int, mlp_size: int, num_layers: int, num_heads: int, num_kv_heads: int, vocab_size: int, is_tied: bool
) -> dict[str, Any]:
    return {
        **_QWEN2_TEXT,
        "model_type": "qwen2_vl",
        "max_position_embeddings": 32768,
        "hidden_size": size,
        "intermediate_size": mlp_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "vocab_size": vocab_size,
        "tie_word_embeddings": is_tied,
        "vision_config": {**_QWEN2_TOWER, "hidden_size": size},
    }


def _qwen2_5(*sizes: Any, **tower: Any) -> dict[str, Any]:
    text = _qwen2(*sizes)
    tower = {**_QWEN2_5_TOWER, "out_hidden_size": text["hidden_size"], **tower}
    return {**text, "model_type": "qwen2_5_vl", "max_position_embeddings": 128000, "vision_config": tower}


def _qwen2_5_32b() -> dict[str, Any]:
    """Its tower is described in a few words, and its rope under another type."""
    raw = _qwen2_5(5120, 27648, 64, 40, 8, 152064, False, intermediate_size=3456)
    named = ("hidden_size", "in_chans", "intermediate_size", "out_hidden_size", "spatial_patch_size")
    tower = {name: raw["vision_config"][name] for name in (*named, "tokens_per_second")}
    rope = {"mrope_section": [16, 24, 24], "rope_type": "default", "type": "default"}
    return {**raw, "rope_scaling": rope, "vision_config": tower}


_TOWER_24 = {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack_visual_indexes": [5, 11, 17]}
_TOWER_27 = {"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack_visual_indexes": [8, 16, 24]}


def _qwen3(
    size: int,
    mlp_size: int,
    num_layers: int,
    num_heads: int,
    num_kv_heads: int,
    tower: dict[str, Any],
    expert_size: int = 0,
    is_tied: bool = False,
) -> dict[str, Any]:
    model_type = "qwen3_vl_moe" if expert_size else "qwen3_vl"
    experts = {
        "moe_intermediate_size": expert_size,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "norm_topk_prob": True,
    }
    text = {
        "model_type": f"{model_type}_text",
        "vocab_size": 151936,
        "hidden_size": size,
        "intermediate_size": mlp_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": 128,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "rope_theta": 5000000,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
        "eos_token_id": 151645,
        # Those that are not tied say so at the top alone.
        **({"tie_word_embeddings": True} if is_tied else {}),
        **(experts if expert_size else {}),
    }
    vision = {
        "model_type": model_type,
        "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3,
        "num_heads": 16,
        "num_position_embeddings": 2304,
        "out_hidden_size": size,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        **tower,
    }
    return {
        "model_type": model_type,
        "tie_word_embeddings": is_tied,
        "transformers_version": "4.57.0.dev0",
        **QWEN_TOKENS,
        "text_config": text,
        "vision_config": vision,
    }


QWEN2_VL: dict[str, dict[str, Any]] = {
    "Qwen2-VL-2B-Instruct": _qwen2(1536, 8960, 28, 12, 2, 151936, True),
    "Qwen2-VL-7B-Instruct": _qwen2(3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2-VL-72B-Instruct": _qwen2(8192, 29568, 80, 64, 8, 152064, False),
    "Qwen2.5-VL-3B-Instruct": _qwen2_5(2048, 11008, 36, 16, 2, 151936, True),
    "Qwen2.5-VL-7B-Instruct": _qwen2_5(3584, 18944, 28, 28, 4, 152064, False),
    "Qwen2.5-VL-32B-Instruct": _qwen2_5_32b(),
    "Qwen2.5-VL-72B-Instruct": _qwen2_5(8192, 29568, 80, 64, 8, 152064, False, intermediate_size=3456),
}
QWEN3_VL: dict[str, dict[str, Any]] = {
    "Qwen3-VL-2B-Instruct": _qwen3(2048, 6144, 28, 16, 8, _TOWER_24, is_tied=True),
    "Qwen3-VL-4B-Thinking": _qwen3(2560, 9728, 36, 32, 8, _TOWER_24, is_tied=True),
    "Qwen3-VL-8B-Instruct": _qwen3(4096, 12288, 36, 32, 8, _TOWER_27),
    "Qwen3-VL-32B-Thinking": _qwen3(5120, 25600, 64, 64, 8, _TOWER_27),
    "Qwen3-VL-30B-A3B-Instruct": _qwen3(2048, 6144, 48, 32, 4, _TOWER_27, 768),
    "Qwen3-VL-235B-A22B-Instruct": _qwen3(4096, 12288, 94, 64, 4, _TOWER_27, 1536),
}

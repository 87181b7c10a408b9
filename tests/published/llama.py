"""``config.json`` of Llama 4 and Llama 3.2 Vision: what the models read of it."""

from __future__ import annotations

from typing import Any

LLAMA4_TOKENS = {"boi_token_index": 200080, "eoi_token_index": 200081, "image_token_index": 200092}

_LLAMA4_TEXT = {
    "vocab_size": 202048,
    "hidden_size": 5120,
    "intermediate_size": 8192,
    "intermediate_size_mlp": 16384,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-5,
    "num_experts_per_tok": 1,
    "rope_theta": 500000.0,
    "attention_chunk_size": 8192,
    "attn_temperature_tuning": True,
    "attn_scale": 0.1,
    "floor_scale": 8192,
    "eos_token_id": [200001, 200007, 200008],
}
_LONG = {
    "factor": 16.0,
    "high_freq_factor": 1.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
_LLAMA4_TOWER = {
    "hidden_size": 1408,
    "intermediate_size": 5632,
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "hidden_act": "gelu",
    "image_size": 336,
    "patch_size": 14,
    "pixel_shuffle_ratio": 0.5,
    "vision_output_dim": 4096,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
    "rope_theta": 10000,
}


def _llama4(**text: Any) -> dict[str, Any]:
    return {
        "model_type": "llama4",
        **LLAMA4_TOKENS,
        "tie_word_embeddings": False,
        "text_config": {**_LLAMA4_TEXT, **text},
        "vision_config": _LLAMA4_TOWER,
    }


def _mllama(size: int, mlp_size: int, num_layers: int, num_heads: int, image_size: int) -> dict[str, Any]:
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
            "vocab_size": 128256,
            "hidden_size": size,
            "intermediate_size": mlp_size,
            "num_hidden_layers": num_layers,
            "num_attention_heads": num_heads,
            "num_key_value_heads": 8,
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "cross_attention_layers": list(range(3, num_layers, 5)),
            "rope_theta": 500000.0,
            "rope_scaling": rope,
            "eos_token_id": [128001, 128008, 128009],
            "tie_word_embeddings": False,
        },
        "vision_config": {
            "model_type": "mllama_vision_model",
            "hidden_size": 1280,
            "hidden_act": "gelu",
            "intermediate_size": 5120,
            "num_hidden_layers": 32,
            "num_global_layers": 8,
            "attention_heads": 16,
            "vision_output_dim": 7680,
            "image_size": image_size,
            "patch_size": 14,
            "intermediate_layers_indices": [3, 7, 15, 23, 30],
            "max_num_tiles": 4,
            "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
        },
    }


LLAMA4: dict[str, dict[str, Any]] = {
    "Llama-4-Scout-17B-16E-Instruct": _llama4(
        num_local_experts=16,
        interleave_moe_layer_step=1,
        use_qk_norm=True,
        max_position_embeddings=10485760,
        rope_scaling=_LONG,
        no_rope_layers=[],
    ),
    "Llama-4-Maverick-17B-128E-Instruct": _llama4(
        num_local_experts=128,
        interleave_moe_layer_step=2,
        use_qk_norm=False,
        max_position_embeddings=1048576,
        rope_scaling=None,
    ),
}
MLLAMA: dict[str, dict[str, Any]] = {
    "Llama-3.2-11B-Vision": _mllama(4096, 14336, 40, 32, 448),
    "Llama-3.2-11B-Vision-Instruct": _mllama(4096, 14336, 40, 32, 560),
    "Llama-3.2-90B-Vision": _mllama(8192, 28672, 100, 64, 560),
    "Llama-3.2-90B-Vision-Instruct": _mllama(8192, 28672, 100, 64, 560),
}

"""``config.json`` and the like of GLM-4.1V, GLM-4.5V and GLM-4.6V: what the models read of it."""

from __future__ import annotations

from typing import Any

GLM_BRACKETS = {
    "image_start_token_id": 151339,
    "image_end_token_id": 151340,
    "video_start_token_id": 151341,
    "video_end_token_id": 151342,
}
# <|endoftext|>, <|user|>, <|observation|>
GLM_EOS = [151329, 151336, 151338]
GLM_PROCESSOR = {
    "size": {"shortest_edge": 12544, "longest_edge": 9633792},
    "do_rescale": True,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
"""Settings of the image processor, which are the video processor's, too; beside them stand the names of classes."""

_ROPE = {"rope_type": "default", "mrope_section": [8, 12, 12]}
_TEXT = {
    "vocab_size": 151552,
    "hidden_size": 4096,
    "hidden_act": "silu",
    "attention_bias": True,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 65536,
    "eos_token_id": GLM_EOS,
    "partial_rotary_factor": 0.5,
    "rope_theta": 10000,
    "rope_scaling": _ROPE,
}
_DENSE = {
    **_TEXT,
    "intermediate_size": 13696,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 2,
}
_MIXTURE = {
    **_TEXT,
    "intermediate_size": 10944,
    "num_hidden_layers": 46,
    "num_attention_heads": 96,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "n_group": 1,
    "topk_group": 1,
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.0,
    "use_qk_norm": False,
}


def _version_6(text: dict[str, Any]) -> dict[str, Any]:
    """The text config of a 4.6V: longer contexts, a larger base, and all of the rope in one place."""
    kept = {key: value for key, value in text.items() if key not in ("rope_theta", "rope_scaling")}
    rope = {**_ROPE, "partial_rotary_factor": 0.5, "rope_theta": 500000}
    return {**kept, "max_position_embeddings": 131072, "rope_parameters": rope}


def _glm(model_type: str, text: dict[str, Any], image_token_id: int) -> dict[str, Any]:
    tower = {
        "depth": 24,
        "hidden_act": "silu",
        "hidden_size": 1536,
        "attention_bias": False,
        "num_heads": 12,
        "image_size": 336,
        "intermediate_size": text["intermediate_size"],
        "out_hidden_size": 4096,
        "patch_size": 14,
        "rms_norm_eps": 1e-5,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    return {
        "model_type": model_type,
        **GLM_BRACKETS,
        "image_token_id": image_token_id,
        "video_token_id": image_token_id + 1,
        "tie_word_embeddings": False,
        "text_config": text,
        "vision_config": tower,
    }


GLM: dict[str, dict[str, Any]] = {
    "GLM-4.1V-9B-Thinking": _glm("glm4v", {**_DENSE, "eos_token_id": [*GLM_EOS, 151348]}, 151343),
    "GLM-4.5V": _glm("glm4v_moe", _MIXTURE, 151363),
    "GLM-4.6V": _glm("glm4v_moe", _version_6(_MIXTURE), 151363),
    "GLM-4.6V-Flash": _glm("glm4v", _version_6(_DENSE), 151363),
}

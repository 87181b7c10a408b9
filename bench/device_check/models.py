"""Models without weights: the JSON files of small ones of every family, and of one of 8 billion parameters.

The small ones have the head sizes, and the query heads for each key-value head, of published models, and sizes of
experts that grouped products take; all else is small. ``load_format="dummy"`` fills them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Json = dict[str, Any]

NUM_TEXT_TOKENS = 500
"""Of the small models; those behind them stand for media and ends."""

_VOCABULARY = 512
_IDS = {"start": 500, "end": 501, "image": 502, "video": 503, "eos": 504}
_MEAN_AND_STD = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
_TEXT = {
    "vocab_size": _VOCABULARY,
    "hidden_act": "silu",
    "max_position_embeddings": 16384,
    "eos_token_id": _IDS["eos"],
}


def _patch_processor(patch_size: int, max_patches: int) -> Json:
    return {
        "image_processor_type": "Qwen2VLImageProcessor", "do_resize": True, "do_rescale": True, "do_normalize": True,
        "do_convert_rgb": True, "rescale_factor": 1 / 255, "resample": 3, "patch_size": patch_size,
        "temporal_patch_size": 2, "merge_size": 2,
        "size": {"shortest_edge": 3136, "longest_edge": max_patches * patch_size**2},
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    }  # fmt: skip


def _qwen2_text() -> Json:
    return {
        **_TEXT, "hidden_size": 896, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 7,
        "num_key_value_heads": 1, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "image_token_id": _IDS["image"],
        "video_token_id": _IDS["video"], "vision_start_token_id": _IDS["start"], "vision_end_token_id": _IDS["end"],
    }  # fmt: skip


def _qwen2_vl() -> Json:
    tower = {
        "model_type": "qwen2_vl", "depth": 3, "embed_dim": 160, "mlp_ratio": 4, "num_heads": 2, "in_chans": 3,
        "hidden_size": 896, "hidden_act": "quick_gelu", "patch_size": 14, "spatial_merge_size": 2,
        "spatial_patch_size": 14, "temporal_patch_size": 2,
    }  # fmt: skip
    return {**_qwen2_text(), "model_type": "qwen2_vl", "vision_config": tower}


def _qwen2_5_vl() -> Json:
    tower = {
        "model_type": "qwen2_5_vl", "depth": 4, "hidden_size": 160, "num_heads": 2, "intermediate_size": 432,
        "fullatt_block_indexes": [1, 3], "window_size": 112, "out_hidden_size": 896, "hidden_act": "silu",
        "in_chans": 3, "patch_size": 14, "spatial_patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "tokens_per_second": 2,
    }  # fmt: skip
    return {**_qwen2_text(), "model_type": "qwen2_5_vl", "vision_config": tower}


def _qwen3(text: Json, tower: Json, *, has_experts: bool) -> Json:
    model_type = "qwen3_vl_moe" if has_experts else "qwen3_vl"
    common = {
        "model_type": f"{model_type}_text", "head_dim": 128, "hidden_act": "silu", "attention_bias": False,
        "rms_norm_eps": 1e-6, "rope_theta": 5e6, "tie_word_embeddings": False,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default"},
    }  # fmt: skip
    vision = {
        "model_type": model_type, "num_position_embeddings": 2304, "hidden_act": "gelu_pytorch_tanh",
        "in_channels": 3, "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2,
        "out_hidden_size": text["hidden_size"],
    }  # fmt: skip
    return {
        "model_type": model_type, "image_token_id": _IDS["image"], "video_token_id": _IDS["video"],
        "vision_start_token_id": _IDS["start"], "vision_end_token_id": _IDS["end"], "tie_word_embeddings": False,
        "transformers_version": "4.57.0", "text_config": {**common, **text}, "vision_config": {**vision, **tower},
    }  # fmt: skip


_SMALL_QWEN3_TOWER = {
    "depth": 4, "hidden_size": 144, "num_heads": 2, "intermediate_size": 272, "deepstack_visual_indexes": [0, 2],
}  # fmt: skip


def _qwen3_vl() -> Json:
    text = {
        **_TEXT, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
        "num_key_value_heads": 2,
    }  # fmt: skip
    return _qwen3(text, _SMALL_QWEN3_TOWER, has_experts=False)


def _qwen3_vl_moe() -> Json:
    text = {
        **_TEXT, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "num_attention_heads": 8,
        "num_key_value_heads": 1, "decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 64,
        "num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": True,
    }  # fmt: skip
    return _qwen3(text, _SMALL_QWEN3_TOWER, has_experts=True)


def _glm(text: Json, *, has_experts: bool) -> Json:
    model_type = "glm4v_moe" if has_experts else "glm4v"
    common = {
        **_TEXT, "model_type": f"{model_type}_text", "num_hidden_layers": 3, "partial_rotary_factor": 0.5,
        "rope_theta": 1e4, "rope_scaling": {"type": "default", "mrope_section": [8, 12, 12]}, "attention_bias": True,
        "rms_norm_eps": 1e-5,
    }  # fmt: skip
    tower = {
        "model_type": model_type, "hidden_act": "silu", "attention_bias": False, "depth": 3, "hidden_size": 256,
        "num_heads": 2, "intermediate_size": 272, "out_hidden_size": text["hidden_size"], "in_channels": 3,
        "image_size": 336, "patch_size": 14, "rms_norm_eps": 1e-5, "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    return {
        "model_type": model_type, "image_start_token_id": _IDS["start"], "image_end_token_id": _IDS["end"],
        "video_start_token_id": 505, "video_end_token_id": 506, "image_token_id": _IDS["image"],
        "video_token_id": _IDS["video"], "tie_word_embeddings": False, "text_config": {**common, **text},
        "vision_config": tower,
    }  # fmt: skip


def _glm4v() -> Json:
    text = {"hidden_size": 512, "intermediate_size": 512, "num_attention_heads": 4, "num_key_value_heads": 1}
    return _glm(text, has_experts=False)


def _glm4v_moe() -> Json:
    text = {
        "hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 12, "num_key_value_heads": 1,
        "head_dim": 128, "first_k_dense_replace": 1, "moe_intermediate_size": 64, "n_routed_experts": 16,
        "n_shared_experts": 1, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
        "routed_scaling_factor": 1.0, "use_qk_norm": False,
    }  # fmt: skip
    return _glm(text, has_experts=True)


def _llama4() -> Json:
    text = {
        **_TEXT, "model_type": "llama4_text", "hidden_size": 256, "intermediate_size": 64,
        "intermediate_size_mlp": 512, "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1,
        "head_dim": 128, "attention_bias": False, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "use_qk_norm": True,
        "interleave_moe_layer_step": 1, "num_local_experts": 8, "num_experts_per_tok": 1, "no_rope_layers": [1, 0, 1],
        "attention_chunk_size": 128, "attn_temperature_tuning": True, "floor_scale": 64, "attn_scale": 0.1,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 1024}, "tie_word_embeddings": False,
    }  # fmt: skip
    tower = {
        "model_type": "llama4_vision_model", "hidden_act": "gelu", "hidden_size": 176, "intermediate_size": 704,
        "num_hidden_layers": 3, "num_attention_heads": 2, "num_channels": 3, "image_size": 168, "patch_size": 14,
        "norm_eps": 1e-5, "pixel_shuffle_ratio": 0.5, "projector_input_dim": 256, "projector_output_dim": 256,
        "vision_output_dim": 256, "multi_modal_projector_bias": False, "rope_theta": 10000,
        "vision_feature_select_strategy": "default",
    }  # fmt: skip
    return {
        "model_type": "llama4", "boi_token_index": _IDS["start"], "eoi_token_index": _IDS["end"],
        "image_token_index": _IDS["image"], "tie_word_embeddings": False, "text_config": text, "vision_config": tower,
    }  # fmt: skip


_LLAMA4_TILES = {
    "<|image_start|>": _IDS["start"], "<|image_end|>": _IDS["end"], "<|tile_x_separator|>": 507,
    "<|tile_y_separator|>": 508, "<|image|>": 509,
}  # fmt: skip


def _mllama() -> Json:
    text = {
        **_TEXT, "model_type": "mllama_text_model", "vocab_size": _IDS["image"], "eos_token_id": _IDS["start"],
        "hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 1, "cross_attention_layers": [1, 3], "rms_norm_eps": 1e-5, "rope_theta": 5e5,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 1024}, "tie_word_embeddings": False,
    }  # fmt: skip
    tower = {
        "model_type": "mllama_vision_model", "hidden_size": 160, "hidden_act": "gelu", "num_hidden_layers": 3,
        "num_global_layers": 2, "attention_heads": 2, "num_channels": 3, "intermediate_size": 640,
        "vision_output_dim": 3 * 160, "image_size": 140, "patch_size": 14, "norm_eps": 1e-5, "max_num_tiles": 4,
        "intermediate_layers_indices": [0, 2],
        "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
    }  # fmt: skip
    return {"model_type": "mllama", "image_token_index": _IDS["image"], "text_config": text, "vision_config": tower}


_TILED = {
    "do_resize": True, "do_rescale": True, "do_normalize": True, "do_convert_rgb": True, "rescale_factor": 1 / 255,
    "resample": 2,
}  # fmt: skip
_TILE_PROCESSORS: dict[str, Json] = {
    "llama4": {
        **_TILED, "image_processor_type": "Llama4ImageProcessorFast", "max_patches": 16,
        "size": {"height": 168, "width": 168}, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    },
    "mllama": {
        **_TILED, "image_processor_type": "MllamaImageProcessor", "do_pad": True, "max_image_tiles": 4,
        "size": {"height": 140, "width": 140}, **_MEAN_AND_STD,
    },
}  # fmt: skip

SMALL: Mapping[str, Callable[[], Json]] = {
    "glm4v": _glm4v,
    "glm4v_moe": _glm4v_moe,
    "llama4": _llama4,
    "mllama": _mllama,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen2_vl": _qwen2_vl,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl_moe,
}
"""By family: what makes ``config.json``."""


def tower_of_eight_billion() -> Json:
    """The same with as little of a language model as its tower can have behind it."""
    config = eight_billion()
    config["text_config"] |= {"num_hidden_layers": 4, "vocab_size": _VOCABULARY}
    return config


def eight_billion() -> Json:
    """``config.json`` with the sizes of Qwen3-VL-8B."""
    text = {
        **_TEXT, "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 262144,
    }  # fmt: skip
    tower = {
        "depth": 27, "hidden_size": 1152, "num_heads": 16, "intermediate_size": 4304,
        "deepstack_visual_indexes": [8, 16, 24],
    }  # fmt: skip
    return _qwen3(text, tower, has_experts=False)


def write_model(config: Json, folder: Path, *, max_patches: int = 2048) -> Path:
    """Write the JSON files of a model whose weights are not read.

    Args:
        config: ``config.json``.
        folder: where to.
        max_patches: of an image, in families that don't cut it into tiles.

    Returns:
        The folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    patch_size = config["vision_config"]["patch_size"]
    processor = _TILE_PROCESSORS.get(config["model_type"]) or _patch_processor(patch_size, max_patches)
    files = {"config.json": config, "preprocessor_config.json": processor}
    if config["model_type"] == "llama4":
        added = [{"id": number, "content": text} for text, number in _LLAMA4_TILES.items()]
        files["tokenizer.json"] = {"added_tokens": added}
    for name, content in files.items():
        (folder / name).write_text(json.dumps(content, indent=1), encoding="utf-8")
    return folder

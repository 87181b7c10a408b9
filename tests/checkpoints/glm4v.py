"""Small random checkpoints of GLM-4.1V and GLM-4.5V."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from transformers.models.glm4v.configuration_glm4v import Glm4vConfig
from transformers.models.glm4v.modeling_glm4v import Glm4vForConditionalGeneration
from transformers.models.glm4v_moe.configuration_glm4v_moe import Glm4vMoeConfig
from transformers.models.glm4v_moe.modeling_glm4v_moe import Glm4vMoeForConditionalGeneration

from tests.checkpoints.common import (
    IMAGE_PROCESSOR,
    SavedModel,
    make_tokenizer,
    merged,
    randomise,
    save_tokenizer,
    write_json,
)

GLM_SPECIAL_TOKENS = (
    "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|begin_of_image|>",
    "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<|image|>", "<|video|>",
)  # fmt: skip


GLM_CHAT_TEMPLATE = """\
[gMASK]<sop>
{%- for message in messages %}<|{{ message.role }}|>
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type in ('image', 'image_url') %}<|begin_of_image|><|image|><|end_of_image|>
{%- elif part.type in ('video', 'video_url') %}<|begin_of_video|><|video|><|end_of_video|>
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<|assistant|>
{% endif %}"""


GLM_IMAGE_PROCESSOR = {
    **{key: value for key, value in IMAGE_PROCESSOR.items() if key not in ("min_pixels", "max_pixels")},
    "image_processor_type": "Glm4vImageProcessor",
    "size": {"shortest_edge": 12544, "longest_edge": 602112},
}

GLM46V_IMAGE_PROCESSOR = {
    **GLM_IMAGE_PROCESSOR,
    "image_processor_type": "Glm46VImageProcessor",
    "processor_class": "Glm46VProcessor",
}


GLM_CLASSES: dict[str, tuple[Any, Any]] = {
    "glm4v": (Glm4vConfig, Glm4vForConditionalGeneration),
    "glm4v_moe": (Glm4vMoeConfig, Glm4vMoeForConditionalGeneration),
}


def glm4v_config(tokenizer: Tokenizer, *, has_experts: bool = False) -> dict[str, Any]:
    """``config.json`` of a small GLM-4.1V or GLM-4.5V in the hub's form.

    The sizes are as awkward as those of Qwen2.5-VL; with experts, heads are larger than their share of the hidden
    size.
    """
    ids = {token: tokenizer.token_to_id(token) for token in GLM_SPECIAL_TOKENS}
    model_type = "glm4v_moe" if has_experts else "glm4v"
    experts = {
        "hidden_size": 64,
        "head_dim": 16,
        "first_k_dense_replace": 1,
        "moe_intermediate_size": 36,
        "n_routed_experts": 12,
        "n_shared_experts": 2,
        "num_experts_per_tok": 3,
        "n_group": 4,
        "topk_group": 2,
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.5,
        "use_qk_norm": False,
    }
    vision = {
        "model_type": model_type,
        "hidden_act": "silu",
        "attention_bias": False,
        "depth": 3,
        "hidden_size": 64,
        "num_heads": 8,
        "intermediate_size": 90,
        "out_hidden_size": 64 if has_experts else 128,
        "in_channels": 3,
        "image_size": 84,
        "patch_size": 14,
        "rms_norm_eps": 1e-5,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
    }
    sizes = {
        "model_type": f"{model_type}_text",
        "vocab_size": tokenizer.get_vocab_size() + 3,
        "hidden_size": 128,
        "intermediate_size": 180,
        "num_hidden_layers": 3,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "default", "mrope_section": [1, 1, 2]},
        "attention_bias": True,
        "hidden_act": "silu",
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "eos_token_id": [ids["<|endoftext|>"], ids["<|user|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        **(experts if has_experts else {}),
    }
    return {
        "architectures": ["Glm4vMoeForConditionalGeneration" if has_experts else "Glm4vForConditionalGeneration"],
        "model_type": model_type,
        "image_start_token_id": ids["<|begin_of_image|>"],
        "image_end_token_id": ids["<|end_of_image|>"],
        "video_start_token_id": ids["<|begin_of_video|>"],
        "video_end_token_id": ids["<|end_of_video|>"],
        "image_token_id": ids["<|image|>"],
        "video_token_id": ids["<|video|>"],
        "tie_word_embeddings": False,
        "text_config": sizes,
        "vision_config": vision,
    }


def save_glm4v(
    folder: Path,
    names: Literal["hub", "transformers5"] = "hub",
    *,
    has_experts: bool = False,
    changes: Mapping[str, Any] = {},
    processor: Mapping[str, Any] = GLM_IMAGE_PROCESSOR,
) -> SavedModel:
    """Write a small random GLM-4.1V or GLM-4.5V checkpoint; transformers 5 can keep experts in one tensor.

    With ``GLM46V_IMAGE_PROCESSOR`` it is a GLM-4.6V-Flash or a GLM-4.6V.
    """
    tokenizer = make_tokenizer(GLM_SPECIAL_TOKENS)
    raw = merged(glm4v_config(tokenizer, has_experts=has_experts), changes)
    kind, model = GLM_CLASSES[raw["model_type"]]
    reference = model._from_config(kind(**json.loads(json.dumps(raw))), attn_implementation="eager").eval()
    randomise(reference, 0, torch.float32)
    for name, buffer in reference.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.copy_(torch.linspace(0.3, 0.0, len(buffer)))
    reference.save_pretrained(folder, save_original_format=names == "hub")
    if names == "hub":
        write_json(folder / "config.json", raw)
    write_json(folder / "generation_config.json", {"eos_token_id": raw["text_config"]["eos_token_id"]})
    write_json(folder / "preprocessor_config.json", dict(processor))
    save_tokenizer(
        folder,
        tokenizer,
        special_tokens=GLM_SPECIAL_TOKENS,
        kind="PreTrainedTokenizerFast",
        eos_token="<|endoftext|>",
        chat_template=GLM_CHAT_TEMPLATE,
    )
    return SavedModel(folder, reference)

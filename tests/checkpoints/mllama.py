"""Small random checkpoints of Llama 3.2 Vision."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from transformers.models.mllama.configuration_mllama import MllamaConfig
from transformers.models.mllama.modeling_mllama import MllamaForConditionalGeneration

from tests.checkpoints.common import (
    IMAGE_PROCESSOR,
    SavedModel,
    make_tokenizer,
    merged,
    randomise,
    save_tokenizer,
    with_tiles_of,
    write_json,
)

# The placeholder is the last one: it lies beyond the output projection.
LLAMA_SPECIAL_TOKENS = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|endoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|image|>",
)  # fmt: skip


LLAMA_CHAT_TEMPLATE = """\
<|begin_of_text|>
{%- for message in messages %}<|start_header_id|>{{ message.role }}<|end_header_id|>

{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type in ('image', 'image_url') %}<|image|>
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|eot_id|>
{%- endfor %}
{%- if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>

{% endif %}"""


def mllama_config(tokenizer: Tokenizer) -> dict[str, Any]:
    """``config.json`` of a small Mllama as the hub has it.

    Shards of the MLPs and of the vocabulary are uneven on 4 ranks, 4 ranks share 2 key-value heads, and the tower's
    heads divide by 2, 3 and 4.
    """
    ids = {token: tokenizer.token_to_id(token) for token in LLAMA_SPECIAL_TOKENS}
    text = {
        "model_type": "mllama_text_model",
        "vocab_size": ids["<|image|>"],
        "hidden_size": 64,
        "intermediate_size": 180,
        "num_hidden_layers": 5,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "cross_attention_layers": [1, 3],
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 8.0,
            "high_freq_factor": 4.0,
            "low_freq_factor": 1.0,
            "original_max_position_embeddings": 256,
            "rope_type": "llama3",
        },
        "tie_word_embeddings": False,
        "bos_token_id": ids["<|begin_of_text|>"],
        "eos_token_id": ids["<|eot_id|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    vision = {
        "model_type": "mllama_vision_model",
        "hidden_size": 96,
        "hidden_act": "gelu",
        "num_hidden_layers": 3,
        "num_global_layers": 2,
        "attention_heads": 12,
        "num_channels": 3,
        "intermediate_size": 180,
        "vision_output_dim": 288,
        "image_size": 42,
        "patch_size": 14,
        "norm_eps": 1e-5,
        "max_num_tiles": 4,
        "intermediate_layers_indices": [0, 2],
        "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
    }
    return {
        "architectures": ["MllamaForConditionalGeneration"],
        "model_type": "mllama",
        "image_token_index": ids["<|image|>"],
        "text_config": text,
        "vision_config": vision,
    }


MLLAMA_IMAGE_PROCESSOR = {
    "image_processor_type": "MllamaImageProcessor",
    "do_convert_rgb": True,
    "do_normalize": True,
    "do_pad": True,
    "do_rescale": True,
    "do_resize": True,
    "image_mean": IMAGE_PROCESSOR["image_mean"],
    "image_std": IMAGE_PROCESSOR["image_std"],
    "max_image_tiles": 4,
    "resample": 2,
    "rescale_factor": 1 / 255,
    "size": {"height": 42, "width": 42},
}


def save_mllama(
    folder: Path, names: Literal["hub", "transformers5"] = "hub", *, changes: Mapping[str, Any] = {}
) -> SavedModel:
    """Write a small random Mllama checkpoint."""
    tokenizer = make_tokenizer(LLAMA_SPECIAL_TOKENS)
    raw = merged(mllama_config(tokenizer), changes)
    config = MllamaConfig(**json.loads(json.dumps(raw)))
    reference = MllamaForConditionalGeneration._from_config(config, attn_implementation="eager").eval()
    randomise(reference, 0, torch.float32)
    reference.save_pretrained(folder, save_original_format=names == "hub")
    if names == "hub":
        write_json(folder / "config.json", raw)
    write_json(folder / "generation_config.json", {"eos_token_id": raw["text_config"]["eos_token_id"]})
    write_json(folder / "preprocessor_config.json", with_tiles_of(MLLAMA_IMAGE_PROCESSOR, raw))
    save_tokenizer(
        folder,
        tokenizer,
        special_tokens=LLAMA_SPECIAL_TOKENS,
        kind="PreTrainedTokenizerFast",
        eos_token="<|eot_id|>",
        chat_template=LLAMA_CHAT_TEMPLATE,
    )
    return SavedModel(folder, reference)


def hub_name_of_mllama(name: str) -> str:
    """What the hub's checkpoints call a tensor of transformers 5."""
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    name = name.removeprefix("model.")
    return name.replace("language_model.", "language_model.model.", 1) if name.startswith("language_model.") else name

"""Small random checkpoints of Llama 4."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer
from transformers.models.llama4.configuration_llama4 import Llama4Config
from transformers.models.llama4.modeling_llama4 import Llama4ForConditionalGeneration, MoeCausalLMOutputWithPast

from tests.checkpoints.common import (
    SavedModel,
    make_tokenizer,
    merged,
    randomise,
    save_tokenizer,
    save_weights,
    with_tiles_of,
    write_json,
)

LLAMA4_SPECIAL_TOKENS = (
    "<|begin_of_text|>", "<|endoftext|>", "<|header_start|>", "<|header_end|>", "<|eot|>", "<|image_start|>",
    "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>", "<|image|>", "<|patch|>",
)  # fmt: skip


LLAMA4_CHAT_TEMPLATE = """\
{{ bos_token }}
{%- for message in messages %}<|header_start|>{{ message.role }}<|header_end|>

{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type in ('image', 'image_url') %}<|image|>
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|eot|>{% endfor %}
{%- if add_generation_prompt %}<|header_start|>assistant<|header_end|>

{% endif %}"""


LLAMA4_IMAGE_PROCESSOR = {
    "image_processor_type": "Llama4ImageProcessorFast",
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "rescale_factor": 1 / 255,
    "resample": 2,
    "size": {"height": 84, "width": 84},
    "max_patches": 6,
    "resize_to_max_canvas": False,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


# transformers 5.24.0 can't run Llama 4: at the end of its forward pass it copies ``image_outputs`` from the language
# model's output, whose class has no such field. With the field it computes what 5.19.0 does, which has no such line.
if not hasattr(MoeCausalLMOutputWithPast, "image_outputs"):
    MoeCausalLMOutputWithPast.image_outputs = None


def llama4_config(tokenizer: Tokenizer, *, is_interleaved: bool) -> dict[str, Any]:
    """``config.json`` of a small Llama 4 as the hub has it: like Scout, or with experts in every second layer only.

    Shards of the MLPs, the experts and the vocabulary are uneven on 4 ranks; chunks of attention end within blocks of
    the cache and within tiles; the middle layer has no rotary positions and is not chunked.
    """
    ids = {token: tokenizer.token_to_id(token) for token in LLAMA4_SPECIAL_TOKENS}
    stretched = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    text = {
        "model_type": "llama4_text",
        "vocab_size": tokenizer.get_vocab_size() + 3,
        "bos_token_id": ids["<|begin_of_text|>"],
        "eos_token_id": [ids["<|eot|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        "hidden_size": 64,
        "intermediate_size": 36,
        "intermediate_size_mlp": 180,
        "num_hidden_layers": 3,
        "num_attention_heads": 12 if is_interleaved else 8,
        "num_key_value_heads": 1 if is_interleaved else 2,
        "head_dim": 16,
        "hidden_act": "silu",
        "attention_bias": False,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": None if is_interleaved else stretched,
        "use_qk_norm": not is_interleaved,
        "interleave_moe_layer_step": 2 if is_interleaved else 1,
        "num_local_experts": 6,
        "num_experts_per_tok": 2 if is_interleaved else 1,
        "no_rope_layers": [1, 0, 1],
        "attention_chunk_size": 12,
        "attn_temperature_tuning": True,
        "floor_scale": 8,
        "attn_scale": 0.1,
        "tie_word_embeddings": False,
    }
    vision = {
        "model_type": "llama4_vision_model",
        "hidden_act": "gelu",
        "hidden_size": 96,
        "intermediate_size": 384,
        "num_hidden_layers": 3,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": 84,
        "patch_size": 14,
        "norm_eps": 1e-5,
        "pixel_shuffle_ratio": 0.5,
        "projector_input_dim": 100,
        "projector_output_dim": 100,
        "vision_output_dim": 100,
        "multi_modal_projector_bias": False,
        "rope_theta": 10000,
        "vision_feature_select_strategy": "default",
    }
    return {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "boi_token_index": ids["<|image_start|>"],
        "eoi_token_index": ids["<|image_end|>"],
        "image_token_index": ids["<|patch|>"],
        "tie_word_embeddings": False,
        "transformers_version": "4.51.0.dev0",
        "text_config": text,
        "vision_config": vision,
    }


def save_llama4(
    folder: Path,
    config: Literal["hub", "transformers5"] = "hub",
    *,
    is_interleaved: bool = False,
    changes: Mapping[str, Any] = {},
) -> SavedModel:
    """Write a small random Llama 4 checkpoint; the layouts have the same names, and other forms of the config."""
    tokenizer = make_tokenizer(LLAMA4_SPECIAL_TOKENS)
    raw = merged(llama4_config(tokenizer, is_interleaved=is_interleaved), changes)
    processor = with_tiles_of(LLAMA4_IMAGE_PROCESSOR, raw)
    settings = Llama4Config(**json.loads(json.dumps(raw)))
    reference = Llama4ForConditionalGeneration._from_config(settings, attn_implementation="eager").eval()
    randomise(reference, 0, torch.float32)
    folder.mkdir(parents=True, exist_ok=True)
    if config == "transformers5":
        reference.save_pretrained(folder)
        write_json(folder / "processor_config.json", {"image_processor": processor})
    else:
        write_json(folder / "config.json", raw)
        save_weights(folder, reference.state_dict())
        write_json(folder / "preprocessor_config.json", processor)
    write_json(folder / "generation_config.json", {"eos_token_id": raw["text_config"]["eos_token_id"]})
    save_tokenizer(
        folder,
        tokenizer,
        special_tokens=LLAMA4_SPECIAL_TOKENS,
        kind="PreTrainedTokenizerFast",
        eos_token="<|eot|>",
        chat_template=LLAMA4_CHAT_TEMPLATE,
        bos_token="<|begin_of_text|>",
    )
    return SavedModel(folder, reference)

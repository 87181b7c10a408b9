"""Small random checkpoints in the layouts that exist in the wild, made with Hugging Face's own classes.

``changes`` are values of ``config.json`` that a checkpoint is to have in place of the small model's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn
from transformers.models.glm4v.configuration_glm4v import Glm4vConfig
from transformers.models.glm4v.modeling_glm4v import Glm4vForConditionalGeneration
from transformers.models.glm4v_moe.configuration_glm4v_moe import Glm4vMoeConfig
from transformers.models.glm4v_moe.modeling_glm4v_moe import Glm4vMoeForConditionalGeneration
from transformers.models.llama4.configuration_llama4 import Llama4Config
from transformers.models.llama4.modeling_llama4 import Llama4ForConditionalGeneration, MoeCausalLMOutputWithPast
from transformers.models.mllama.configuration_mllama import MllamaConfig
from transformers.models.mllama.modeling_mllama import MllamaForConditionalGeneration
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLForConditionalGeneration
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLForConditionalGeneration
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLConfig
from transformers.models.qwen3_vl.modeling_qwen3_vl import Qwen3VLForConditionalGeneration
from transformers.models.qwen3_vl_moe.configuration_qwen3_vl_moe import Qwen3VLMoeConfig
from transformers.models.qwen3_vl_moe.modeling_qwen3_vl_moe import Qwen3VLMoeForConditionalGeneration

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip

GLM_SPECIAL_TOKENS = (
    "<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|begin_of_image|>",
    "<|end_of_image|>", "<|begin_of_video|>", "<|end_of_video|>", "<|image|>", "<|video|>",
)  # fmt: skip

LLAMA4_SPECIAL_TOKENS = (
    "<|begin_of_text|>", "<|endoftext|>", "<|header_start|>", "<|header_end|>", "<|eot|>", "<|image_start|>",
    "<|image_end|>", "<|tile_x_separator|>", "<|tile_y_separator|>", "<|image|>", "<|patch|>",
)  # fmt: skip

# The placeholder is the last one: it lies beyond the output projection.
LLAMA_SPECIAL_TOKENS = (
    "<|begin_of_text|>", "<|end_of_text|>", "<|endoftext|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
    "<|image|>",
)  # fmt: skip

_CORPUS = (
    "The picture shows a small red house beside a river, with two trees and a bridge.",
    "What do you see in this image? Describe it in one short sentence, please.",
    "There are 3 cats, 12 dogs and 456 birds; the answer is 789.",
    "Ein Bild sagt mehr als tausend Worte: schöne Grüße aus Zürich!",
    "一张图片胜过千言万语。 Привет, мир! 🙂🚀",
    'def main() -> None:\n    print("Hello, world!")\n',
)
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

CHAT_TEMPLATE = """\
{%- if messages[0].role != 'system' %}<|im_start|>system
You are a helpful assistant.<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>
{%- elif part.type in ('video', 'video_url') %}<|vision_start|><|video_pad|><|vision_end|>
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

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

LLAMA4_CHAT_TEMPLATE = """\
{{ bos_token }}
{%- for message in messages %}<|header_start|>{{ message.role }}<|header_end|>

{% if message.content is string %}{{ message.content }}{% else %}
{%- for part in message.content %}
{%- if part.type in ('image', 'image_url') %}<|image|>
{%- else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|eot|>{% endfor %}
{%- if add_generation_prompt %}<|header_start|>assistant<|header_end|>

{% endif %}"""

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

IMAGE_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 3136,
    "max_pixels": 301056,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}


GLM_IMAGE_PROCESSOR = {
    **{key: value for key, value in IMAGE_PROCESSOR.items() if key not in ("min_pixels", "max_pixels")},
    "image_processor_type": "Glm4vImageProcessor",
    "size": {"shortest_edge": 12544, "longest_edge": 602112},
}


QWEN2_CLASSES: dict[str, tuple[Any, Any]] = {
    "qwen2_5_vl": (Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration),
    "qwen2_vl": (Qwen2VLConfig, Qwen2VLForConditionalGeneration),
}

GLM_CLASSES: dict[str, tuple[Any, Any]] = {
    "glm4v": (Glm4vConfig, Glm4vForConditionalGeneration),
    "glm4v_moe": (Glm4vMoeConfig, Glm4vMoeForConditionalGeneration),
}

QWEN3_IMAGE_PROCESSOR = {
    **{key: value for key, value in IMAGE_PROCESSOR.items() if key not in ("min_pixels", "max_pixels")},
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": 16,
    "size": {"shortest_edge": 4096, "longest_edge": 262144},
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}

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

QWEN3_VL_CLASSES: dict[str, tuple[Any, Any]] = {
    "qwen3_vl": (Qwen3VLConfig, Qwen3VLForConditionalGeneration),
    "qwen3_vl_moe": (Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration),
}


@dataclass(frozen=True)
class Layout:
    """How a checkpoint is laid out on disk."""

    config: Literal["flat", "nested"] = "flat"
    names: Literal["hub", "transformers5"] = "hub"
    num_shards: int = 1
    dtype: torch.dtype = torch.float32
    has_lm_head: bool = True


@dataclass(frozen=True)
class SavedModel:
    """A checkpoint's folder and Hugging Face's model with the same weights, in float32."""

    folder: Path
    reference: Any


def merged(raw: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``raw`` with other values for some keys; a dict among them is merged, too."""
    both = {key: merged(raw[key], value) if isinstance(value, Mapping) else value for key, value in changes.items()}
    return {**raw, **both}


def make_tokenizer(special_tokens: Sequence[str] = SPECIAL_TOKENS) -> Tokenizer:
    """A byte-level BPE tokenizer with a family's special tokens after its vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(_CORPUS, trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special_tokens])
    return tokenizer


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
    folder: Path, layout: Layout = Layout(), *, tied: bool = False, seed: int = 0, changes: Mapping[str, Any] = {}
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


def save_qwen2_vl(folder: Path, layout: Layout = Layout(), *, changes: Mapping[str, Any] = {}) -> SavedModel:
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
) -> SavedModel:
    """Write a small random GLM-4.1V or GLM-4.5V checkpoint; transformers 5 can keep experts in one tensor."""
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
    write_json(folder / "preprocessor_config.json", GLM_IMAGE_PROCESSOR)
    save_tokenizer(
        folder,
        tokenizer,
        special_tokens=GLM_SPECIAL_TOKENS,
        kind="PreTrainedTokenizerFast",
        eos_token="<|endoftext|>",
        chat_template=GLM_CHAT_TEMPLATE,
    )
    return SavedModel(folder, reference)


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
    processor = _with_tiles_of(LLAMA4_IMAGE_PROCESSOR, raw)
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
    write_json(folder / "preprocessor_config.json", _with_tiles_of(MLLAMA_IMAGE_PROCESSOR, raw))
    save_tokenizer(
        folder,
        tokenizer,
        special_tokens=LLAMA_SPECIAL_TOKENS,
        kind="PreTrainedTokenizerFast",
        eos_token="<|eot_id|>",
        chat_template=LLAMA_CHAT_TEMPLATE,
    )
    return SavedModel(folder, reference)


def _with_tiles_of(processor: dict[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an image processor for tiles as large as the tower's."""
    side = raw["vision_config"]["image_size"]
    return {**processor, "size": {"height": side, "width": side}}


def save_tokenizer(
    folder: Path,
    tokenizer: Tokenizer,
    *,
    special_tokens: Sequence[str] = SPECIAL_TOKENS,
    kind: str = "Qwen2Tokenizer",
    eos_token: str = "<|im_end|>",
    chat_template: str = CHAT_TEMPLATE,
    bos_token: str | None = None,
) -> None:
    """Write the tokenizer's files as the hub's checkpoints have them."""
    tokenizer.save(str(folder / "tokenizer.json"))
    added = {
        str(tokenizer.token_to_id(token)): {"content": token, "special": True, "lstrip": False, "rstrip": False,
                                            "normalized": False, "single_word": False}
        for token in special_tokens
    }  # fmt: skip
    settings = {
        "tokenizer_class": kind,
        "model_max_length": 4096,
        "eos_token": eos_token,
        "pad_token": "<|endoftext|>",
        "bos_token": bos_token,
        "add_bos_token": False,
        "clean_up_tokenization_spaces": False,
        "chat_template": chat_template,
        "added_tokens_decoder": added,
    }
    write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(chat_template, encoding="utf-8")


def randomise(model: nn.Module, seed: int, dtype: torch.dtype) -> None:
    """Give every weight a sensible size, so that no two logits tie; the values are exact in ``dtype``."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=generator)
            weight.copy_(_scaled(name, noise).to(dtype))
    model.tie_weights()


def _scaled(name: str, noise: Tensor) -> Tensor:
    if name.endswith("bias"):
        return 0.1 * noise
    if noise.dim() == 1:  # norms
        return 1 + 0.1 * noise
    if "embed_tokens" in name or "lm_head" in name:
        return 0.1 * noise
    if "pos_embed" in name or "positional_embedding" in name:
        return 0.3 * noise
    fan_in = noise.shape[-1] if ".experts." in name else noise[0].numel()
    return noise / fan_in**0.5


def hub_name_of_qwen2(name: str) -> str:
    """What the hub's checkpoints call a tensor of transformers 5."""
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


def hub_name_of_mllama(name: str) -> str:
    """What the hub's checkpoints call a tensor of transformers 5."""
    if name.startswith("lm_head."):
        return f"language_model.{name}"
    name = name.removeprefix("model.")
    return name.replace("language_model.", "language_model.model.", 1) if name.startswith("language_model.") else name


def save_weights(folder: Path, tensors: dict[str, Tensor], num_shards: int = 1) -> None:
    """Write ``model.safetensors``, or an index and ``num_shards`` files."""
    tensors = {name: tensor.clone().contiguous() for name, tensor in tensors.items()}
    if num_shards == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    weight_map = {}
    for shard in range(num_shards):
        own = dict(sorted(tensors.items())[shard::num_shards])
        file = f"model-{shard + 1:05}-of-{num_shards:05}.safetensors"
        save_file(own, folder / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(own, file)
    write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": weight_map})


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON file."""
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file in place."""
    value = json.loads(path.read_text(encoding="utf-8"))
    edit(value)
    write_json(path, value)

"""A tiny Qwen2.5-VL with random weights, to try the plumbing with no download. Its answers mean nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_VERSION = "demo-qwen2_5_vl-2"
_SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_NUM_BYTES = 256
_CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}"
    "{% else %}{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_HIDDEN, _LAYERS, _HEADS, _KV_HEADS, _MLP = 128, 2, 4, 4, 256
_TOWER_HIDDEN, _TOWER_DEPTH, _TOWER_HEADS, _TOWER_MLP = 64, 4, 4, 128
_PATCH_SIZES = (3, 2, 14, 14)  # channels, frames, rows, columns


def demo_checkpoint() -> Path:
    """The folder of the demonstration checkpoint, made at first use in the user's cache folder."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "chiasm"
    folder = cache / _VERSION
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        # Made beside its place and moved there whole, so that two starts at a time can't see half of it.
        made = Path(tempfile.mkdtemp(dir=cache))
        write_demo_checkpoint(made)
        try:
            made.rename(folder)
        except OSError:  # another process was faster
            shutil.rmtree(made)
    return folder


def write_demo_checkpoint(folder: Path) -> None:
    """Write config, tokenizer, template and seeded random weights."""
    from safetensors.numpy import save_file

    def write(name: str, value: dict[str, Any]) -> None:
        (folder / name).write_text(json.dumps(value, indent=1), encoding="utf-8")

    token_ids = {token: _NUM_BYTES + index for index, token in enumerate(_SPECIAL_TOKENS)}
    write("config.json", _config(token_ids))
    write("generation_config.json", {"do_sample": True, "eos_token_id": token_ids["<|im_end|>"]})
    write("tokenizer_config.json", {"eos_token": "<|im_end|>"})
    write("preprocessor_config.json", _image_processor())
    (folder / "chat_template.jinja").write_text(_CHAT_TEMPLATE, encoding="utf-8")
    _tokenizer().save(str(folder / "tokenizer.json"))
    save_file(_random_weights(), str(folder / "model.safetensors"))


def _config(token_ids: dict[str, int]) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "vocab_size": _NUM_BYTES + len(_SPECIAL_TOKENS),
        "hidden_size": _HIDDEN,
        "intermediate_size": _MLP,
        "num_hidden_layers": _LAYERS,
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _KV_HEADS,
        "max_position_embeddings": 16384,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]},
        "tie_word_embeddings": True,
        "eos_token_id": token_ids["<|im_end|>"],
        "image_token_id": token_ids["<|image_pad|>"],
        "video_token_id": token_ids["<|video_pad|>"],
        "vision_start_token_id": token_ids["<|vision_start|>"],
        "vision_end_token_id": token_ids["<|vision_end|>"],
        "vision_token_id": token_ids["<|vision_pad|>"],
        "vision_config": {
            "depth": _TOWER_DEPTH,
            "hidden_size": _TOWER_HIDDEN,
            "num_heads": _TOWER_HEADS,
            "intermediate_size": _TOWER_MLP,
            "out_hidden_size": _HIDDEN,
            "fullatt_block_indexes": [1, 3],
            "patch_size": 14,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "window_size": 112,
        },
    }


def _image_processor() -> dict[str, Any]:
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "patch_size": 14,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "min_pixels": 56 * 56,
        "max_pixels": 1280 * 28 * 28,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }


def _tokenizer() -> Tokenizer:
    """One token per byte, and the special ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={char: index for index, char in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIAL_TOKENS])
    return tokenizer


class _Weights:
    """Seeded random weights under the hub's names."""

    def __init__(self) -> None:
        self.tensors: dict[str, npt.NDArray[np.float32]] = {}
        self._rng = np.random.default_rng(0)

    def matrix(self, name: str, *shape: int) -> None:
        """Rows of about unit size, whatever they are multiplied with."""
        fan_in = int(np.prod(shape[1:]))
        self.tensors[f"{name}.weight"] = (self._rng.standard_normal(shape) / np.sqrt(fan_in)).astype(np.float32)

    def linear(self, name: str, num_out: int, num_in: int, *, has_bias: bool) -> None:
        """A matrix, and a bias of zeros if it has one."""
        self.matrix(name, num_out, num_in)
        if has_bias:
            self.tensors[f"{name}.bias"] = np.zeros(num_out, dtype=np.float32)

    def norm(self, name: str, size: int) -> None:
        """Ones."""
        self.tensors[f"{name}.weight"] = np.ones(size, dtype=np.float32)


def _random_weights() -> dict[str, npt.NDArray[np.float32]]:
    weights = _Weights()
    _add_tower(weights)
    _add_language_model(weights)
    return weights.tensors


def _add_tower(weights: _Weights) -> None:
    weights.matrix("visual.patch_embed.proj", _TOWER_HIDDEN, *_PATCH_SIZES)
    for block in (f"visual.blocks.{index}" for index in range(_TOWER_DEPTH)):
        weights.norm(f"{block}.norm1", _TOWER_HIDDEN)
        weights.norm(f"{block}.norm2", _TOWER_HIDDEN)
        weights.linear(f"{block}.attn.qkv", 3 * _TOWER_HIDDEN, _TOWER_HIDDEN, has_bias=True)
        weights.linear(f"{block}.attn.proj", _TOWER_HIDDEN, _TOWER_HIDDEN, has_bias=True)
        weights.linear(f"{block}.mlp.gate_proj", _TOWER_MLP, _TOWER_HIDDEN, has_bias=True)
        weights.linear(f"{block}.mlp.up_proj", _TOWER_MLP, _TOWER_HIDDEN, has_bias=True)
        weights.linear(f"{block}.mlp.down_proj", _TOWER_HIDDEN, _TOWER_MLP, has_bias=True)
    weights.norm("visual.merger.ln_q", _TOWER_HIDDEN)
    weights.linear("visual.merger.mlp.0", 4 * _TOWER_HIDDEN, 4 * _TOWER_HIDDEN, has_bias=True)
    weights.linear("visual.merger.mlp.2", _HIDDEN, 4 * _TOWER_HIDDEN, has_bias=True)


def _add_language_model(weights: _Weights) -> None:
    head_dim = _HIDDEN // _HEADS
    weights.matrix("model.embed_tokens", _NUM_BYTES + len(_SPECIAL_TOKENS), _HIDDEN)
    for layer in (f"model.layers.{index}" for index in range(_LAYERS)):
        weights.norm(f"{layer}.input_layernorm", _HIDDEN)
        weights.norm(f"{layer}.post_attention_layernorm", _HIDDEN)
        weights.linear(f"{layer}.self_attn.q_proj", _HEADS * head_dim, _HIDDEN, has_bias=True)
        weights.linear(f"{layer}.self_attn.k_proj", _KV_HEADS * head_dim, _HIDDEN, has_bias=True)
        weights.linear(f"{layer}.self_attn.v_proj", _KV_HEADS * head_dim, _HIDDEN, has_bias=True)
        weights.linear(f"{layer}.self_attn.o_proj", _HIDDEN, _HEADS * head_dim, has_bias=False)
        weights.linear(f"{layer}.mlp.gate_proj", _MLP, _HIDDEN, has_bias=False)
        weights.linear(f"{layer}.mlp.up_proj", _MLP, _HIDDEN, has_bias=False)
        weights.linear(f"{layer}.mlp.down_proj", _HIDDEN, _MLP, has_bias=False)
    weights.norm("model.norm", _HIDDEN)

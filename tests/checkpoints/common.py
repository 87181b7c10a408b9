"""What all small random checkpoints are made of: tokenizer, weights, files.

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

SPECIAL_TOKENS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
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


@dataclass(frozen=True)
class Layout:
    """How a checkpoint is laid out on disk."""

    config: Literal["flat", "nested"] = "flat"
    names: Literal["hub", "transformers5"] = "hub"
    num_shards: int = 1
    dtype: torch.dtype = torch.float32
    has_lm_head: bool = True


HUB_LAYOUT = Layout()
"""One file with the hub's names."""


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


def with_tiles_of(processor: dict[str, Any], raw: Mapping[str, Any]) -> dict[str, Any]:
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

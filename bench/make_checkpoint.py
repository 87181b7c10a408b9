"""Write a random Qwen2.5-VL with a tower of about 100 million parameters and a small language model, for benchmarks.

It has the tokenizer of the built-in chart reader.

python bench/make_checkpoint.py FOLDER
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from tokenizers import Tokenizer
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLConfig
from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLForConditionalGeneration

from chiasm.config.built_in import BUILT_IN_FOLDER

_COPIED = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "preprocessor_config.json")
_TOKENS = {
    "image": "image_pad",
    "video": "video_pad",
    "vision_start": "vision_start",
    "vision_end": "vision_end",
    "vision": "vision_pad",
    "bos": "endoftext",
    "eos": "im_end",
}


def main() -> None:
    """Write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--heads", type=int, default=12)
    options = parser.parse_args()
    torch.manual_seed(0)
    tokens = Tokenizer.from_file(str(BUILT_IN_FOLDER / "tokenizer.json")).get_vocab()
    width, text_width, full = options.width, 512, [i for i in range(options.depth) if i % 4 == 3]
    config = Qwen2_5_VLConfig(
        vision_config={
            "depth": options.depth, "hidden_size": width, "num_heads": options.heads, "fullatt_block_indexes": full,
            "intermediate_size": width * 8 // 3, "out_hidden_size": text_width, "window_size": 112,
        },
        text_config={
            "hidden_size": text_width, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8,
            "num_key_value_heads": 8, "vocab_size": 1024,
            "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        },
        **{f"{name}_token_id": tokens[f"<|{token}|>"] for name, token in _TOKENS.items()},
    )  # fmt: skip
    model = Qwen2_5_VLForConditionalGeneration(config)
    num_weights = sum(weight.numel() for weight in model.model.visual.parameters())
    model.save_pretrained(options.folder)
    for name in _COPIED:
        shutil.copy(BUILT_IN_FOLDER / name, options.folder)
    print(f"{options.folder}: a tower of {num_weights / 1e6:.0f} million parameters")


if __name__ == "__main__":
    main()

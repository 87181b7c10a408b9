"""Write a run as an ordinary checkpoint folder: ``python -m training.export --folder RUN --out FOLDER``."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from chiasm.evals.charts.examples import held_out_seed, make_chart
from chiasm.evals.charts.plan import Scope
from training.model import PATCH
from training.state import Run
from training.tokens import CHAT_TEMPLATE, SPECIAL_TOKENS

_IMAGE_PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "do_resize": True,
    "do_rescale": True,
    "do_normalize": True,
    "do_convert_rgb": True,
    "rescale_factor": 1 / 255,
    "resample": 3,
    "patch_size": PATCH,
    "temporal_patch_size": 2,
    "merge_size": 2,
    "min_pixels": 112 * 112,
    "max_pixels": 448 * 448,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}


_EXAMPLES = {
    "bars": ("vertical bars", (8, 6), 2),
    "line": ("line", (9, 6), 9),
    "pie": ("pie", (6, 6), 4),
    "table": ("table", (5, 6), 5),
}
"""File name, kind, size in cells and seed of charts to try it on; none of them is measured or trained on."""
_FIRST_EXAMPLE = 1 << 29


def export(run: Run, out: Path) -> None:
    """Write weights, config, tokenizer, template, processor and some charts to try it on."""
    out.mkdir(parents=True, exist_ok=True)
    masters = run.optimiser.masters
    tensors = {_hub_name(name): _half(master) for name, master in masters.items() if not name.startswith("heads.")}
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)
    tokenizer = run.speech.tokenizer
    tokenizer.save(str(out / "tokenizer.json"))
    _write(out / "config.json", {**run.raw, "dtype": "bfloat16"})
    end = run.raw["eos_token_id"]
    pad = run.raw["bos_token_id"]
    _write(out / "generation_config.json", {"do_sample": False, "eos_token_id": [end, pad], "pad_token_id": pad})
    _write(out / "preprocessor_config.json", _IMAGE_PROCESSOR)
    _write(out / "tokenizer_config.json", _tokenizer_config(run))
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    (out / "examples").mkdir(exist_ok=True)
    for name, (kind, size, seed) in _EXAMPLES.items():
        chart = make_chart(Random(held_out_seed(_FIRST_EXAMPLE + seed)), Scope(kinds=(kind,)), size)
        chart.figures[0].image.save(out / "examples" / f"{name}.png", optimize=True)


def _hub_name(name: str) -> str:
    return name.replace("model.visual.", "visual.").replace("model.language_model.", "model.")


def _half(master: Tensor) -> Tensor:
    return master.to(torch.bfloat16).contiguous()


def _tokenizer_config(run: Run) -> dict[str, Any]:
    flags = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.raw["max_position_embeddings"],
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "clean_up_tokenization_spaces": False,
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "added_tokens_decoder": {str(run.speech.id(token)): {"content": token, **flags} for token in SPECIAL_TOKENS},
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    """Parse the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the run")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    export(Run(options.folder, 0, torch.float32), options.out)


if __name__ == "__main__":
    main()

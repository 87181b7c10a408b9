"""Do Hugging Face's own classes answer as chiasm does? ``python -m training.compare [FOLDER] [--limit N]``."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoImageProcessor, AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from chiasm.config.built_in import BUILT_IN_FOLDER
from chiasm.evals.charts.examples import Example, held_out_seed, make_example
from chiasm.evals.runner import LONGEST_ANSWER, ask_all, conversation
from chiasm.llm.offline import LLM

_PLACEHOLDER = "<|image_pad|>"


class HuggingFace:
    """A checkpoint loaded by Hugging Face's classes, in float32."""

    def __init__(self, folder: Path) -> None:
        processors: Any = AutoImageProcessor
        self._model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder, dtype=torch.float32)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        self._processor = processors.from_pretrained(folder)

    @torch.inference_mode()
    def answer(self, example: Example) -> str:
        """Decode greedily."""
        media = self._processor(list(example.images), return_tensors="pt")
        messages = conversation(example)
        prompt: str = self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        head, *rest = prompt.split(_PLACEHOLDER)
        for grid, part in zip(media["image_grid_thw"], rest, strict=True):
            head += _PLACEHOLDER * (int(grid.prod()) // self._processor.merge_size**2) + part
        ids = torch.tensor([self._tokenizer.encode(head, add_special_tokens=False)])
        out = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == self._model.config.image_token_id).int(),
            pixel_values=media["pixel_values"],
            image_grid_thw=media["image_grid_thw"],
            max_new_tokens=LONGEST_ANSWER,
            do_sample=False,
        )
        text: str = self._tokenizer.decode(out[0, ids.shape[1] :], skip_special_tokens=True)
        return text


def differences(examples: Sequence[Example], folder: Path = BUILT_IN_FOLDER) -> list[tuple[Example, str, str]]:
    """The examples on which the two differ, each with Hugging Face's answer and chiasm's."""
    reference = HuggingFace(folder)
    theirs = [reference.answer(example) for example in examples]
    with LLM(str(folder), dtype="float32") as llm:
        ours = ask_all(llm, examples)
    return [row for row in zip(examples, theirs, ours, strict=True) if row[1] != row[2]]


def main() -> None:
    """Compare and fail on a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=BUILT_IN_FOLDER)
    parser.add_argument("--limit", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = differences([make_example(held_out_seed(i)) for i in range(options.limit)], options.folder)
    for example, theirs, ours in found:
        print(f"{example.question} Hugging Face: {theirs!r}, chiasm: {ours!r}")  # noqa: T201
    print(f"{options.limit - len(found)} of {options.limit} answers are the same")  # noqa: T201
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()

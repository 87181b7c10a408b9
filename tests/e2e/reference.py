"""Answers of Hugging Face's own classes to the prompts that a ``chiasm.LLM`` gets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer

from chiasm.models.registry import open_checkpoint
from chiasm.schema.media import CanvasProcessorSpec, PatchProcessorSpec, TileProcessorSpec
from tests.checkpoints.common import SavedModel
from tests.e2e.canvas_inputs import CanvasInputs
from tests.e2e.patch_inputs import Frames, PatchInputs
from tests.e2e.tile_inputs import TileInputs

NUM_TOKENS = 16


_INPUTS = {PatchProcessorSpec: PatchInputs, TileProcessorSpec: TileInputs, CanvasProcessorSpec: CanvasInputs}


class Continuation(NamedTuple):
    """Greedy tokens, the logits that they were chosen by, and those of the prompt's own tokens.

    Logits are float32 [tokens, vocabulary].
    """

    tokens: list[int]
    logits: Tensor
    prompt_logits: Tensor


class Reference:
    """Hugging Face's model with its tokenizer.

    Attributes:
        facts: of the checkpoint.
    """

    def __init__(self, saved: SavedModel) -> None:
        self._model = saved.reference
        self._tokenizer = AutoTokenizer.from_pretrained(saved.folder)
        checkpoint = open_checkpoint(saved.folder)
        self.facts = checkpoint.facts
        self._inputs = _INPUTS[type(self.facts.processor)](checkpoint, self._tokenizer)

    def chat_prompt(self, messages: list[dict[str, Any]]) -> str:
        """The chat template's text."""
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def image_prompt(self, num_images: int, text: str = "What is this?") -> str:
        """A plain prompt with so many pictures before its text."""
        return self._inputs.image * num_images + text

    def text(self, tokens: list[int]) -> str:
        """What the tokens say, special ones included."""
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    def answer(self, prompt: str, images: Sequence[Image.Image], videos: Sequence[Frames] = ()) -> list[int]:
        """``NUM_TOKENS`` greedy tokens, whatever they are."""
        return self.go_on(prompt, images, videos).tokens

    @torch.inference_mode()
    def go_on(self, prompt: str, images: Sequence[Image.Image], videos: Sequence[Frames] = ()) -> Continuation:
        """``NUM_TOKENS`` greedy tokens, whatever they are, and their logits."""
        inputs = self._inputs(prompt, images, videos)
        out = self._model.generate(
            **inputs,
            attention_mask=torch.ones_like(inputs["input_ids"]),
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            output_logits=True,
            return_dict_in_generate=True,
        )
        tokens = out.sequences[0, inputs["input_ids"].shape[1] :].tolist()
        return Continuation(tokens, torch.cat(out.logits).float(), self.logits(prompt, images, videos))

    @torch.inference_mode()
    def logits(self, prompt: str, images: Sequence[Image.Image], videos: Sequence[Frames] = ()) -> Tensor:
        """Of every token of the prompt, placeholders included: float32 [n, vocabulary]."""
        return self._model(**self._inputs(prompt, images, videos), use_cache=False).logits[0].float()


def image_prompt(num_images: int, text: str = "What is this?") -> str:
    """A plain prompt with so many pictures before its text."""
    return "<|vision_start|><|image_pad|><|vision_end|>" * num_images + text


def folder_of(saved: SavedModel) -> str:
    """The checkpoint as a user names it."""
    return str(Path(saved.folder))

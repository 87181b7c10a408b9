"""Greedy answers of Hugging Face's own classes to the prompts that a ``chiasm.LLM`` gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoTokenizer

from chiasm.config.checkpoint import read_image_processor_config
from chiasm.models.registry import open_checkpoint
from chiasm.multimodal.patches import cut_into_patches
from chiasm.multimodal.resize import resize
from chiasm.multimodal.sizes import resized_size
from tests.checkpoints import SavedModel

NUM_TOKENS = 16


class Reference:
    """Hugging Face's model with its tokenizer; pixels are normalised as its processor does it.

    The resized bytes are ours: that they are those of Hugging Face's processor is tested with golden values.
    """

    def __init__(self, saved: SavedModel) -> None:
        self._model = saved.reference
        self._tokenizer = AutoTokenizer.from_pretrained(saved.folder)
        facts = open_checkpoint(saved.folder).facts
        self._spec = facts.processor
        self._placeholder = self._tokenizer.convert_ids_to_tokens(facts.image_token_id)
        self._brackets = self._tokenizer.convert_ids_to_tokens(list(facts.media_token_ids[:2]))
        settings = read_image_processor_config(saved.folder)
        self._mean, self._std = (np.array(settings[key])[:, None] for key in ("image_mean", "image_std"))

    def chat_prompt(self, messages: list[dict[str, Any]]) -> str:
        """The chat template's text."""
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def image_prompt(self, num_images: int, text: str = "What is this?") -> str:
        """A plain prompt with so many pictures before its text."""
        start, end = self._brackets
        return f"{start}{self._placeholder}{end}" * num_images + text

    def text(self, tokens: list[int]) -> str:
        """What the tokens say, special ones included."""
        return self._tokenizer.decode(tokens, skip_special_tokens=False)

    @torch.inference_mode()
    def answer(self, prompt: str, images: list[Image.Image]) -> list[int]:
        """``NUM_TOKENS`` greedy tokens, whatever they are."""
        pixels, grids, media = [], [], {}
        for image in images:
            rows, grid = self._patches(np.array(image))
            pixels.append(rows)
            grids.append(grid)
            prompt = prompt.replace(self._placeholder, "<|hole|>" * (grid[1] * grid[2] // 4), 1)
        ids = torch.tensor([self._tokenizer.encode(prompt.replace("<|hole|>", self._placeholder))])
        if images:
            media = {"pixel_values": torch.from_numpy(np.concatenate(pixels)), "image_grid_thw": torch.tensor(grids)}
            media["mm_token_type_ids"] = (ids == self._model.config.image_token_id).int()
        out = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            **media,
        )
        return out[0, ids.shape[1] :].tolist()

    def _patches(self, image: np.ndarray) -> tuple[np.ndarray, tuple[int, int, int]]:
        height, width = resized_size(image.shape[0], image.shape[1], self._spec)
        rows = cut_into_patches([resize(image, height, width, "bicubic")], self._spec)
        normal = (rows.reshape(len(rows), 3, -1).astype(np.float32) / 255 - self._mean) / self._std
        side = self._spec.patch_size
        return normal.reshape(rows.shape).astype(np.float32), (1, height // side, width // side)


def image_prompt(num_images: int, text: str = "What is this?") -> str:
    """A plain prompt with so many pictures before its text."""
    return "<|vision_start|><|image_pad|><|vision_end|>" * num_images + text


def folder_of(saved: SavedModel) -> str:
    """The checkpoint as a user names it."""
    return str(Path(saved.folder))

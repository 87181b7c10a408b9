"""Greedy answers of Hugging Face's own classes where pictures are cut into tiles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer
from transformers.models.llama4.processing_llama4 import Llama4Processor

from chiasm.models.registry import open_checkpoint
from chiasm.multimodal.pixels import read_rows
from chiasm.multimodal.processing import process_image
from chiasm.schema.media import TileProcessorSpec
from tests.checkpoints import SavedModel
from tests.e2e.reference import NUM_TOKENS


class TileReference:
    """Llama 4 with its tokenizer, and the prompt that its processor makes of tiles.

    Tiles are ours: that they are those of Hugging Face's processor is tested with golden values.
    """

    def __init__(self, saved: SavedModel, folder: Path) -> None:
        self._model = saved.reference
        self._tokenizer = AutoTokenizer.from_pretrained(saved.folder)
        spec = open_checkpoint(saved.folder).facts.processor
        assert isinstance(spec, TileProcessorSpec)
        self._spec = spec
        self._folder = folder

    def chat_prompt(self, messages: list[dict[str, Any]]) -> str:
        """The chat template's text."""
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def image_prompt(self, num_images: int, text: str = "What is this?") -> str:
        """A plain prompt with so many pictures before its text."""
        return "<|image|>" * num_images + text

    @torch.inference_mode()
    def answer(self, prompt: str, images: list[Image.Image]) -> list[int]:
        """``NUM_TOKENS`` greedy tokens, whatever they are."""
        first, *others = prompt.split("<|image|>")
        tiles, media = [], {}
        for image, text in zip(images, others, strict=True):
            canvas, own = self._tiles(np.array(image))
            tiles.append(own)
            num_tokens = self._spec.max_unit_tokens
            first += Llama4Processor._prompt_split_image(None, canvas, num_tokens) + text
        if images:
            media["pixel_values"] = torch.cat(tiles)
        ids = torch.tensor([self._tokenizer.encode(first)])
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

    def _tiles(self, image: np.ndarray) -> tuple[tuple[int, int], Tensor]:
        """(rows, columns) of the canvas, and float32 [tiles, 3, height, width]."""
        item = process_image(image, self._spec, self._folder)
        rows = torch.from_numpy(np.concatenate([read_rows(unit.pixels) for unit in item.units]))
        side, blocks = self._spec.patch_size, self._spec.tile_size // self._spec.patch_size // 2
        patches = rows.view(len(item.units), blocks, blocks, 2, 2, 3, side, side)
        size = self._spec.tile_size
        return item.canvas, patches.permute(0, 5, 1, 3, 6, 2, 4, 7).reshape(-1, 3, size, size) / 127.5 - 1

"""Greedy answers of Hugging Face's own classes where text attends to pictures that are canvases of tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers import AutoTokenizer
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)

from chiasm.config.checkpoint import read_image_processor_config
from chiasm.models.registry import open_checkpoint
from chiasm.multimodal.resize import resize
from chiasm.multimodal.sizes import size_on_canvas
from chiasm.schema.media import CanvasProcessorSpec
from tests.checkpoints import SavedModel
from tests.e2e.reference import NUM_TOKENS


class CanvasReference:
    """Mllama with its tokenizer and processor, but for the resize, which its processor does with torchvision.

    The resized bytes are ours: that they are those of Hugging Face's processor is tested with golden values.
    """

    def __init__(self, saved: SavedModel) -> None:
        self._model = saved.reference
        self._tokenizer = AutoTokenizer.from_pretrained(saved.folder)
        facts = open_checkpoint(saved.folder).facts
        assert isinstance(facts.processor, CanvasProcessorSpec)
        self._spec = facts.processor
        self._placeholder = facts.image_token_id
        settings = read_image_processor_config(saved.folder)
        kept = ("size", "max_image_tiles", "image_mean", "image_std")
        self._processor = MllamaImageProcessorPil(**{key: settings[key] for key in kept})

    def chat_prompt(self, messages: list[dict[str, Any]]) -> str:
        """The chat template's text."""
        return self._tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)

    def image_prompt(self, num_images: int, text: str = "What is this?") -> str:
        """A plain prompt with so many pictures before its text."""
        return "<|image|>" * num_images + text

    @torch.inference_mode()
    def answer(self, prompt: str, images: list[Image.Image]) -> list[int]:
        """``NUM_TOKENS`` greedy tokens, whatever they are."""
        ids = torch.tensor([self._tokenizer.encode(prompt)])
        out = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            **(self._media(images, ids) if images else {}),
        )
        return out[0, ids.shape[1] :].tolist()

    def _media(self, images: list[Image.Image], ids: Tensor) -> dict[str, Tensor]:
        most = self._spec.canvas.num_tiles
        media = self._processor([self._canvas(np.array(image)) for image in images], return_tensors="pt")
        num_tiles = media.pop("num_tiles")
        seen = get_cross_attention_token_mask(ids[0].tolist(), self._placeholder)
        mask = convert_sparse_cross_attention_mask_to_dense([seen], num_tiles, most, ids.shape[1])
        return {**media, "cross_attention_mask": torch.from_numpy(mask)}

    def _canvas(self, image: np.ndarray) -> np.ndarray:
        """A picture that is as large as its canvas, so that the processor leaves its size as it is."""
        tiles, picture = size_on_canvas(image.shape[0], image.shape[1], self._spec)
        canvas = np.zeros((tiles[0] * self._spec.tile_size, tiles[1] * self._spec.tile_size, 3), np.uint8)
        canvas[: picture[0], : picture[1]] = resize(image, *picture, "bilinear").transpose(1, 2, 0)
        return canvas

"""What Hugging Face's models take where a picture lies on a canvas of tiles that text attends to (Mllama)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers.models.mllama.image_processing_pil_mllama import MllamaImageProcessorPil
from transformers.models.mllama.processing_mllama import (
    convert_sparse_cross_attention_mask_to_dense,
    get_cross_attention_token_mask,
)

from chiasm.config.checkpoint import read_image_processor_config
from chiasm.models.registry import Checkpoint
from chiasm.multimodal.resize import resize
from chiasm.multimodal.sizes import size_on_canvas
from chiasm.schema.media import CanvasProcessorSpec
from tests.e2e.patch_inputs import Frames


class CanvasInputs:
    """Inputs of a model by Hugging Face's own processing, with the resize of Pillow, which is ours.

    Args:
        checkpoint: the model.
        tokenizer: Hugging Face's.

    Attributes:
        image: what stands for a picture in a prompt.
    """

    def __init__(self, checkpoint: Checkpoint, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._image_token_id = checkpoint.facts.image_token_id
        assert isinstance(checkpoint.facts.processor, CanvasProcessorSpec)
        self._spec = checkpoint.facts.processor
        self.image = tokenizer.convert_ids_to_tokens(self._image_token_id)
        settings = read_image_processor_config(checkpoint.folder)
        side = self._spec.tile_size
        self._process = MllamaImageProcessorPil(
            size={"height": side, "width": side},
            max_image_tiles=self._spec.canvas.num_tiles,
            image_mean=settings["image_mean"],
            image_std=settings["image_std"],
        )

    def __call__(self, prompt: str, images: Sequence[Image.Image], videos: Sequence[Frames]) -> dict[str, Any]:
        """Token ids, tiles and who sees them, of a prompt with these pictures; there are no videos."""
        assert not videos
        ids = torch.tensor([self._tokenizer.encode(prompt)])
        if not images:
            return {"input_ids": ids}
        media = self._process([self._on_canvas(image) for image in images], return_tensors="pt")
        num_tiles = media.pop("num_tiles")
        seen = [get_cross_attention_token_mask(ids[0].tolist(), self._image_token_id)]
        mask = convert_sparse_cross_attention_mask_to_dense(
            seen, num_tiles, self._spec.canvas.num_tiles, ids.shape[1]
        )
        return {"input_ids": ids, **media, "cross_attention_mask": torch.from_numpy(mask)}

    def _on_canvas(self, image: Image.Image) -> np.ndarray:
        """The picture, resized, in the corner of whole tiles: uint8 [height, width, 3]."""
        tiles, size = size_on_canvas(image.height, image.width, self._spec)
        canvas = np.zeros((tiles[0] * self._spec.tile_size, tiles[1] * self._spec.tile_size, 3), np.uint8)
        canvas[: size[0], : size[1]] = resize(np.array(image), *size, "bilinear").transpose(1, 2, 0)
        return canvas

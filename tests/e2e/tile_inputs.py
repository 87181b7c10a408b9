"""What Hugging Face's models take where pictures are cut into tiles (Llama 4)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from transformers.models.llama4.processing_llama4 import Llama4Processor

from chiasm.models.registry import Checkpoint
from chiasm.multimodal.pixels import read_rows
from chiasm.multimodal.processing import process_image
from chiasm.schema.media import TileProcessorSpec
from tests.e2e.patch_inputs import Frames


class TileInputs:
    """Inputs of a model, with the prompt that Hugging Face's processor makes of tiles.

    Tiles are ours: that they are those of Hugging Face's processor is tested with golden values.

    Args:
        checkpoint: the model.
        tokenizer: Hugging Face's.

    Attributes:
        image: what stands for a picture in a prompt.
    """

    image = "<|image|>"

    def __init__(self, checkpoint: Checkpoint, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        assert isinstance(checkpoint.facts.processor, TileProcessorSpec)
        self._spec = checkpoint.facts.processor

    def __call__(self, prompt: str, images: Sequence[Image.Image], videos: Sequence[Frames]) -> dict[str, Any]:
        """Token ids and tiles of a prompt with these pictures; there are no videos."""
        assert not videos
        text, *others = prompt.split(self.image)
        tiles = []
        for image, following in zip(images, others, strict=True):
            canvas, own = self._tiles(np.array(image))
            tiles.append(own)
            text += Llama4Processor._prompt_split_image(None, canvas, self._spec.max_unit_tokens) + following
        ids = torch.tensor([self._tokenizer.encode(text)])
        return {"input_ids": ids, "pixel_values": torch.cat(tiles)} if images else {"input_ids": ids}

    def _tiles(self, image: np.ndarray) -> tuple[tuple[int, int], Tensor]:
        """(rows, columns) of the canvas, and float32 [tiles, 3, height, width]."""
        with TemporaryDirectory() as folder:
            item = process_image(image, self._spec, Path(folder))
            rows = torch.from_numpy(np.concatenate([read_rows(unit.pixels) for unit in item.units]))
        size, side = self._spec.tile_size, self._spec.patch_size
        blocks = size // side // 2
        patches = rows.view(len(item.units), blocks, blocks, 2, 2, 3, side, side)
        return item.canvas, patches.permute(0, 5, 1, 3, 6, 2, 4, 7).reshape(-1, 3, size, size) / 127.5 - 1

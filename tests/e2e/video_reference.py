"""Greedy answers of Hugging Face's own classes to prompts with videos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from chiasm.multimodal.patches import cut_into_patches
from chiasm.multimodal.resize import resize_bicubic
from chiasm.multimodal.sizes import resized_size
from tests.e2e.reference import NUM_TOKENS, Reference


class Frames(NamedTuple):
    """The frames that are taken of a video, uint8 [frames, height, width, 3], and how many of them in a second."""

    pixels: np.ndarray
    fps: float


class VideoReference(Reference):
    """As ``Reference``; a video's placeholder is repeated for all its slices."""

    @torch.inference_mode()
    def answer_media(self, prompt: str, images: Sequence[Image.Image], videos: Sequence[Frames]) -> list[int]:
        """``NUM_TOKENS`` greedy tokens, whatever they are."""
        media: dict[str, Any] = {"second_per_grid_ts": torch.tensor([2 / video.fps for video in videos])}
        pictures = [np.array(image)[None] for image in images]
        clips = [video.pixels for video in videos]
        for kind, suffix, items in (("image", "", pictures), ("video", "_videos", clips)):
            cut = [self._slices(frames) for frames in items]
            for _, grid in cut:
                prompt = prompt.replace(f"<|{kind}_pad|>", f"<|{kind} hole|>" * (int(np.prod(grid)) // 4), 1)
            prompt = prompt.replace(f"<|{kind} hole|>", f"<|{kind}_pad|>")
            if items:
                media[f"pixel_values{suffix}"] = torch.from_numpy(np.concatenate([rows for rows, _ in cut]))
                media[f"{kind}_grid_thw"] = torch.tensor([grid for _, grid in cut])
        ids = torch.tensor([self._tokenizer.encode(prompt)])
        config = self._model.config
        out = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=(ids == config.image_token_id).int() + 2 * (ids == config.video_token_id).int(),
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            **media,
        )
        return out[0, ids.shape[1] :].tolist()

    def _slices(self, frames: np.ndarray) -> tuple[np.ndarray, tuple[int, int, int]]:
        """Normalised patches of a picture [1, height, width, 3] or of a video's frames, and their grid."""
        height, width = resized_size(frames.shape[1], frames.shape[2], self._spec)
        resized = [resize_bicubic(np.ascontiguousarray(frame), height, width) for frame in frames]
        slices = [cut_into_patches(resized[first : first + 2], self._spec) for first in range(0, len(frames), 2)]
        rows = np.concatenate(slices)
        normal = (rows.reshape(len(rows), 3, -1).astype(np.float32) / 255 - self._mean) / self._std
        side = self._spec.patch_size
        return normal.reshape(rows.shape).astype(np.float32), (len(slices), height // side, width // side)

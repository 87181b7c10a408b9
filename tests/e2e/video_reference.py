"""Greedy answers of Hugging Face's own classes to prompts with videos."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

from chiasm.models.registry import open_checkpoint
from chiasm.multimodal.patches import cut_into_patches
from chiasm.multimodal.resize import resize
from chiasm.multimodal.sizes import resized_frame_size, resized_size
from tests.checkpoints import SavedModel
from tests.e2e.reference import NUM_TOKENS, Reference

# Of each family: the placeholders of a picture and of a video, and what a slice of so many tokens at these times
# becomes, as Hugging Face's processors write it.
_WRITTEN = {
    "qwen2_5_vl": ("<|image_pad|>", "<|video_pad|>", lambda num, first, last: "<|video_pad|>" * num),
    "qwen2_vl": ("<|image_pad|>", "<|video_pad|>", lambda num, first, last: "<|video_pad|>" * num),
    "qwen3_vl": (
        "<|image_pad|>",
        "<|video_pad|>",
        lambda num, first, last: (
            f"<{(first + last) / 2:.1f} seconds><|vision_start|>{'<|video_pad|>' * num}<|vision_end|>"
        ),
    ),
    "glm4v": (
        "<|image|>",
        "<|video|>",
        lambda num, first, last: f"<|begin_of_image|>{'<|image|>' * num}<|end_of_image|>{int(first)}",
    ),
}


class Frames(NamedTuple):
    """The frames that are taken of a video, uint8 [frames, height, width, 3], how many in a second, and when."""

    pixels: np.ndarray
    fps: float
    seconds: Sequence[float] = ()


class VideoReference(Reference):
    """As ``Reference``, for pictures and videos."""

    def __init__(self, saved: SavedModel) -> None:
        super().__init__(saved)
        facts = open_checkpoint(saved.folder).facts
        assert facts.video
        self._facts, self._video_spec = facts, facts.video.processor

    @torch.inference_mode()
    def answer_media(self, prompt: str, images: Sequence[Image.Image], videos: Sequence[Frames]) -> list[int]:
        """``NUM_TOKENS`` greedy tokens, whatever they are."""
        media: dict[str, Any] = {}
        image_token, video_token, written = _WRITTEN[self._facts.model_type]
        cut_images = [self._cut(np.array(image)[None], is_video=False) for image in images]
        cut_videos = [self._cut(video.pixels, is_video=True) for video in videos]
        texts = [image_token * (int(np.prod(grid)) // 4) for _, grid in cut_images]
        clips = []
        for (_, grid), video in zip(cut_videos, videos, strict=True):
            seconds = [*video.seconds, *video.seconds[-1:]] or [0.0] * (2 * grid[0])
            num = grid[1] * grid[2] // 4
            clips.append("".join(written(num, *seconds[2 * i : 2 * i + 2]) for i in range(grid[0])))
        for suffix, kind, cut in (("", "image", cut_images), ("_videos", "video", cut_videos)):
            if cut:
                media[f"pixel_values{suffix}"] = torch.from_numpy(np.concatenate([rows for rows, _ in cut]))
                media[f"{kind}_grid_thw"] = torch.tensor([grid for _, grid in cut])
        if self._facts.model_type == "qwen2_5_vl":
            media["second_per_grid_ts"] = torch.tensor([2 / video.fps for video in videos])
        ids, types = self._tokens(_in_place(prompt, {image_token: texts, video_token: clips}))
        out = self._model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            mm_token_type_ids=types,
            max_new_tokens=NUM_TOKENS,
            min_new_tokens=NUM_TOKENS,
            do_sample=False,
            eos_token_id=None,
            **media,
        )
        return out[0, ids.shape[1] :].tolist()

    def _tokens(self, text: str) -> tuple[torch.Tensor, torch.Tensor]:
        ids = torch.tensor([self._tokenizer.encode(text)])
        types = (ids == self._facts.image_token_id).int()
        if self._facts.model_type == "glm4v":
            start, end = (self._tokenizer.convert_tokens_to_ids(f"<|{n}_of_video|>") for n in ("begin", "end"))
            is_video = (ids == start).cumsum(-1) > (ids == end).cumsum(-1)
            return ids, types + types * is_video
        assert self._facts.video
        return ids, types + 2 * (ids == self._facts.video.token_id).int()

    def _cut(self, frames: np.ndarray, *, is_video: bool) -> tuple[np.ndarray, tuple[int, int, int]]:
        """Normalised patches of a picture [1, height, width, 3] or of a video's frames, and their grid."""
        size = frames.shape[1:3]
        height, width = (
            resized_frame_size(len(frames), *size, self._video_spec) if is_video else resized_size(*size, self._spec)
        )
        resized = [resize(np.ascontiguousarray(frame), height, width, "bicubic") for frame in frames]
        slices = [cut_into_patches(resized[first : first + 2], self._spec) for first in range(0, len(frames), 2)]
        rows = np.concatenate(slices)
        normal = (rows.reshape(len(rows), 3, -1).astype(np.float32) / 255 - self._mean) / self._std
        side = self._spec.patch_size
        return normal.reshape(rows.shape).astype(np.float32), (len(slices), height // side, width // side)


def _in_place(prompt: str, texts: dict[str, list[str]]) -> str:
    """The prompt with each placeholder replaced, in one go: what replaces one may hold others."""
    for token, own in texts.items():
        assert prompt.count(token) == len(own)
    found = sorted((prompt.find(token), token) for token in texts if token in prompt)
    if not found:
        return prompt
    start, token = found[0]
    rest = {**texts, token: texts[token][1:]}
    return prompt[:start] + texts[token][0] + _in_place(prompt[start + len(token) :], rest)

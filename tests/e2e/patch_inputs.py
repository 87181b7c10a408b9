"""What Hugging Face's models take where a picture or a frame is one grid of patches (Qwen, GLM)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from chiasm.config.checkpoint import read_image_processor_config
from chiasm.models.registry import Checkpoint
from chiasm.multimodal.patches import cut_into_patches
from chiasm.multimodal.resize import resize
from chiasm.multimodal.sizes import resized_frame_size, resized_size
from chiasm.schema.media import PatchProcessorSpec

Grid = tuple[int, int, int]


class Frames(NamedTuple):
    """The frames that are taken of a video, uint8 [frames, height, width, 3], how many in a second, and when."""

    pixels: np.ndarray
    fps: float
    seconds: Sequence[float] = ()


def _qwen3_slice(num_tokens: int, first: float, last: float) -> str:
    return f"<{(first + last) / 2:.1f} seconds><|vision_start|>{'<|video_pad|>' * num_tokens}<|vision_end|>"


def _glm_slice(num_tokens: int, first: float, last: float) -> str:
    return f"<|begin_of_image|>{'<|image|>' * num_tokens}<|end_of_image|>{int(first)}"


def _glm46_slice(num_tokens: int, first: float, last: float) -> str:
    return f"<|begin_of_image|>{'<|image|>' * num_tokens}<|end_of_image|>{first:.1f} seconds"


# What Hugging Face's processors write for a slice of so many tokens whose frames are shown at these times.
_SLICES: dict[str, Callable[[int, float, float], str]] = {
    "qwen2_5_vl": lambda num_tokens, first, last: "<|video_pad|>" * num_tokens,
    "qwen2_vl": lambda num_tokens, first, last: "<|video_pad|>" * num_tokens,
    "qwen3_vl": _qwen3_slice,
    "qwen3_vl_moe": _qwen3_slice,
    "glm4v": _glm_slice,
    "glm4v_moe": _glm_slice,
}


class PatchInputs:
    """Inputs of a model; pixels are normalised as Hugging Face's processor does it.

    The resized bytes are ours: that they are those of Hugging Face's processor is tested with golden values.

    Args:
        checkpoint: the model.
        tokenizer: Hugging Face's.

    Attributes:
        image: what stands for a picture in a prompt.
    """

    def __init__(self, checkpoint: Checkpoint, tokenizer: Any) -> None:
        self._facts = checkpoint.facts
        self._tokenizer = tokenizer
        assert isinstance(self._facts.processor, PatchProcessorSpec)
        self._spec = self._facts.processor
        self._placeholder = tokenizer.convert_ids_to_tokens(self._facts.image_token_id)
        start, end = tokenizer.convert_ids_to_tokens(list(self._facts.media_token_ids[:2]))
        self.image = f"{start}{self._placeholder}{end}"
        settings = read_image_processor_config(checkpoint.folder)
        self._write_slice = _SLICES[self._facts.model_type]
        if settings["image_processor_type"] == "Glm46VImageProcessor":
            self._write_slice = _glm46_slice
        self._mean, self._std = (np.array(settings[key])[:, None] for key in ("image_mean", "image_std"))

    def __call__(self, prompt: str, images: Sequence[Image.Image], videos: Sequence[Frames]) -> dict[str, Any]:
        """Token ids, pixels and what else ``forward`` takes of a prompt with these media."""
        cut_images = [self._cut(np.array(image)[None], is_video=False) for image in images]
        cut_videos = [self._cut(video.pixels, is_video=True) for video in videos]
        texts = {self._placeholder: [self._placeholder * _num_tokens(grid) for _, grid in cut_images]}
        if self._facts.video:
            video_token = self._tokenizer.convert_ids_to_tokens(self._facts.video.token_id)
            texts[video_token] = [self._clip(grid, v) for (_, grid), v in zip(cut_videos, videos, strict=True)]
        ids = torch.tensor([self._tokenizer.encode(_in_place(prompt, texts))])
        inputs: dict[str, Any] = {"input_ids": ids}
        for suffix, kind, cut in (("", "image", cut_images), ("_videos", "video", cut_videos)):
            if cut:
                inputs[f"pixel_values{suffix}"] = torch.from_numpy(np.concatenate([rows for rows, _ in cut]))
                inputs[f"{kind}_grid_thw"] = torch.tensor([grid for _, grid in cut])
        if images or videos:
            inputs["mm_token_type_ids"] = self._token_types(ids)
        if videos and self._facts.model_type == "qwen2_5_vl":
            inputs["second_per_grid_ts"] = torch.tensor([2 / video.fps for video in videos])
        return inputs

    def _clip(self, grid: Grid, video: Frames) -> str:
        """What a video's placeholder becomes."""
        seconds = [*video.seconds, *video.seconds[-1:]] or [0.0] * (2 * grid[0])
        times = [seconds[2 * index : 2 * index + 2] for index in range(grid[0])]
        return "".join(self._write_slice(_num_tokens(grid) // grid[0], *each) for each in times)

    def _token_types(self, ids: Tensor) -> Tensor:
        """0 for text, 1 for images, 2 for videos."""
        types = (ids == self._facts.image_token_id).int()
        if self._facts.model_type.startswith("glm4v"):  # where one placeholder serves both
            start, end = (self._tokenizer.convert_tokens_to_ids(f"<|{n}_of_video|>") for n in ("begin", "end"))
            return types + types * ((ids == start).cumsum(-1) > (ids == end).cumsum(-1))
        video = self._facts.video
        return types + 2 * (ids == video.token_id).int() if video else types

    def _cut(self, frames: np.ndarray, *, is_video: bool) -> tuple[np.ndarray, Grid]:
        """Normalised patches of a picture [1, height, width, 3] or of a video's frames, and their grid."""
        size = frames.shape[1:3]
        if is_video:
            assert self._facts.video
            height, width = resized_frame_size(len(frames), *size, self._facts.video.processor)
        else:
            height, width = resized_size(*size, self._spec)
        resized = [resize(np.ascontiguousarray(frame), height, width, "bicubic") for frame in frames]
        slices = [cut_into_patches(resized[first : first + 2], self._spec) for first in range(0, len(frames), 2)]
        rows = np.concatenate(slices)
        normal = (rows.reshape(len(rows), 3, -1).astype(np.float32) / 255 - self._mean) / self._std
        side = self._spec.patch_size
        return normal.reshape(rows.shape).astype(np.float32), (len(slices), height // side, width // side)


def _num_tokens(grid: Grid) -> int:
    return grid[0] * grid[1] * grid[2] // 4


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

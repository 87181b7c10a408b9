"""What the tests of Qwen2-VL and Qwen2.5-VL share: their references, which take the same inputs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from chiasm.models.loader import load_model
from chiasm.schema.facts import ModelFacts
from tests.checkpoints.common import IMAGE_PROCESSOR, SavedModel
from tests.invariants import CPU, Family
from tests.prompts import Prompt


def pixel_values(prompt: Prompt, *modalities: str) -> Tensor:
    """What Hugging Face's processor makes of the bytes of these kinds of items."""
    own = [pixels for item, pixels in zip(prompt.items, prompt.pixels, strict=True) if item.modality in modalities]
    rows = np.concatenate(own).reshape(-1, 3, 392).astype(np.float32)
    mean, std = (np.array(IMAGE_PROCESSOR[key])[:, None] for key in ("image_mean", "image_std"))
    return torch.from_numpy(((rows / 255 - mean) / std).reshape(-1, 1176)).float()


def media_inputs(prompt: Prompt, facts: ModelFacts) -> dict[str, Tensor]:
    """What Hugging Face's processor tells of a prompt's media beside their pixels."""
    assert facts.video
    ids = torch.tensor([prompt.token_ids])
    inputs = {"mm_token_type_ids": (ids == facts.image_token_id).int() + 2 * (ids == facts.video.token_id).int()}
    for modality in ("image", "video"):
        grids = [item.thw for item in prompt.items if item.modality == modality]
        if grids:
            inputs[f"{modality}_grid_thw"] = torch.tensor(grids)
    seconds = [item.seconds_per_slice for item in prompt.items if item.modality == "video"]
    return {**inputs, "second_per_grid_ts": torch.tensor(seconds)} if seconds else inputs


def load_family(saved: SavedModel) -> Family:
    """The model of a small checkpoint beside Hugging Face's."""
    loaded = load_model(saved.folder, dtype=torch.float32, device=CPU)
    reference = saved.reference

    @torch.inference_mode()
    def features(prompt: Prompt) -> Tensor:
        grids = torch.tensor([item.thw for item in prompt.items])
        return reference.model.visual(pixel_values(prompt, "image", "video"), grid_thw=grids).pooler_output

    @torch.inference_mode()
    def logits(prompt: Prompt) -> Tensor:
        media = media_inputs(prompt, loaded.facts)
        for modality, name in (("image", "pixel_values"), ("video", "pixel_values_videos")):
            if f"{modality}_grid_thw" in media:
                media[name] = pixel_values(prompt, modality)
        return reference(input_ids=torch.tensor([prompt.token_ids]), use_cache=False, **media).logits[0]

    return Family(saved.folder, loaded.facts, loaded.model, features, logits)

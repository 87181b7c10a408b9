"""Do the batched passes equal Hugging Face's own? ``python -m training.check``. Run it after every change to them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from chiasm.evals.charts.plan import Scope
from training.forward import text, tower
from training.losses import mask_of
from training.model import build, raw_config
from training.stream import Recipe, train_batch
from training.tokens import Speech, make_tokenizer

_TOLERANCE = 1e-5


class Pair(NamedTuple):
    """The same values, computed in batched passes and by Hugging Face's classes."""

    ours: Tensor
    theirs: Tensor


def both_ways(kind: str) -> tuple[Pair, Pair]:
    """The tower's tokens, and one question's logits out of a pack of four."""
    speech = Speech(make_tokenizer())
    model = build(raw_config(speech.tokenizer), seed=0)
    recipe = Recipe(Scope(kinds=(kind,), min_cells=5, max_cells=9), num_patches=1000)
    batch = train_batch(3, recipe, speech)
    pixels = torch.from_numpy(batch.pixels).float() / 127.5 - 1
    tokens = tower(model, pixels, batch.rows, batch.columns)[1]
    frames = pixels.view(*pixels.shape[:2], 3, 1, -1).expand(-1, -1, -1, 2, -1).reshape(-1, 2 * pixels.shape[-1])
    grids = torch.tensor([[1, batch.rows, batch.columns]] * len(pixels))
    theirs = model.model.visual(frames, grid_thw=grids).pooler_output.view_as(tokens)

    segments, ids = torch.from_numpy(batch.segments[:1]), torch.from_numpy(batch.ids[:1])
    chosen = (segments[0] == 0) | (segments[0] == 2)
    num_frames = len(pixels) // len(batch.ids)
    embedded = model.model.language_model.embed_tokens(ids).clone()
    embedded[(ids == speech.image_pad) & (segments == 0)] = tokens[:num_frames].flatten(0, 1)
    thought = text(model, embedded, torch.from_numpy(batch.places[:, :1]), mask_of(segments, torch.float32))
    ours = (thought.hidden @ model.model.language_model.embed_tokens.weight.T)[0, chosen]
    own = frames[: num_frames * pixels.shape[1]]
    logits = _logits(model, ids[:, chosen], own, grids[:num_frames], speech.image_pad)
    return Pair(tokens, theirs), Pair(ours, logits)


def _logits(model: torch.nn.Module, ids: Tensor, frames: Tensor, grids: Tensor, image_pad: int) -> Tensor:
    logits: Tensor = model(
        input_ids=ids,
        pixel_values=frames,
        image_grid_thw=grids,
        attention_mask=torch.ones_like(ids),
        mm_token_type_ids=(ids == image_pad).int(),
    ).logits[0]
    return logits


def main() -> None:
    """Compare and fail on a difference."""
    with torch.no_grad():
        for kind in ("horizontal bars", "clip"):
            found = [float((pair.ours - pair.theirs).abs().max()) for pair in both_ways(kind)]
            if max(found) > _TOLERANCE:
                raise SystemExit(f"{kind}: tower differs by {found[0]:.2e}, text by {found[1]:.2e}")


if __name__ == "__main__":
    main()

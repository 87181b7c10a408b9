"""What is true of every family, to be asserted with a family's own ingredients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chiasm.config.engine import EncoderMode
from chiasm.dist.group import SOLO, Group
from chiasm.layers.weight import Placement, Weight
from chiasm.models.entry import BuildContext, VisionLanguageModel
from chiasm.models.loader import fill_model, load_model
from chiasm.models.registry import Checkpoint
from chiasm.ops.paged_attention import KVCache, SequenceRows, build_batch
from chiasm.schema.facts import ModelFacts
from chiasm.schema.media import PixelRef
from chiasm.vision.cost import unit_cost
from chiasm.vision.encode import UnitEncoder
from chiasm.vision.plan import plan_vision
from tests.prompts import Prompt
from tests.ranks import RankPool

CPU = torch.device("cpu")
BLOCK_SIZE = 8


@dataclass(frozen=True)
class Family:
    """A family under test.

    Attributes:
        folder: a small checkpoint of it, in float32.
        facts: of that checkpoint.
        model: loaded in float32 on one rank.
        reference_features: prompt -> features of its media by Hugging Face, [tokens, d].
        reference_logits: prompt -> logits of all its tokens by Hugging Face, [n, vocabulary].
    """

    folder: Path
    facts: ModelFacts
    model: VisionLanguageModel
    reference_features: Callable[[Prompt], Tensor]
    reference_logits: Callable[[Prompt], Tensor]


@torch.inference_mode()
def encode(model: VisionLanguageModel, prompts: Sequence[Prompt]) -> Tensor:
    """Features of all media of all prompts, packed: [tokens, d]."""
    pixels = torch.from_numpy(np.concatenate([rows for prompt in prompts for rows in prompt.pixels]))
    return model.encode_vision(pixels, [grid for prompt in prompts for grid in prompt.grids])


@torch.inference_mode()
def embed(model: VisionLanguageModel, prompt: Prompt) -> Tensor:
    """[n, d], features in place."""
    embeds = model.embed_tokens(torch.tensor(prompt.token_ids))
    if prompt.items:
        rows = [row for item in prompt.items for row in range(item.offset, item.end)]
        embeds[rows] = encode(model, [prompt])
    return embeds


@torch.inference_mode()
def run_decoder(
    model: VisionLanguageModel, prompts: Sequence[Prompt], *, chunks: Sequence[int] = (), dtype: torch.dtype
) -> list[Tensor]:
    """Hidden states [n, d] of each prompt, all computed in one batch, chunk by chunk.

    Args:
        model: under test.
        prompts: they share the batch.
        chunks: tokens of every prompt in each step; the rest comes in a last one.
        dtype: of the cache.
    """
    embeds = [embed(model, prompt) for prompt in prompts]
    positions = [torch.from_numpy(model.rope_positions(len(p.token_ids), p.items).positions) for p in prompts]
    tables, num_blocks = _block_tables([len(prompt.token_ids) for prompt in prompts])
    shape = (num_blocks, BLOCK_SIZE, model.num_kv_heads, model.head_dim)
    caches = [KVCache.empty(*shape, dtype, CPU) for _ in range(model.num_layers)]
    hidden: list[list[Tensor]] = [[] for _ in prompts]
    for parts in _steps([len(prompt.token_ids) for prompt in prompts], chunks):
        rows = [SequenceRows(start, stop - start, tables[index]) for index, start, stop in parts]
        out = model.forward(
            torch.cat([embeds[index][start:stop] for index, start, stop in parts]),
            torch.cat([positions[index][:, start:stop] for index, start, stop in parts], dim=1),
            caches,
            build_batch(rows, BLOCK_SIZE, CPU),
        )
        for (index, _, _), own in zip(parts, out.split([r.num_new_tokens for r in rows]), strict=True):
            hidden[index].append(own)
    return [torch.cat(pieces) for pieces in hidden]


def _block_tables(lengths: Sequence[int]) -> tuple[list[list[int]], int]:
    """Blocks in order for every second sequence, backwards for the others: both ways of reading the cache."""
    tables: list[list[int]] = []
    first = 1
    for index, length in enumerate(lengths):
        blocks = list(range(first, first - (-length // BLOCK_SIZE)))
        tables.append(blocks[::-1] if index % 2 else blocks)
        first += len(blocks)
    return tables, first


def _steps(lengths: Sequence[int], chunks: Sequence[int]) -> Iterator[list[tuple[int, int, int]]]:
    """(sequence, start, stop) of each step's parts."""
    start = 0
    for chunk in (*chunks, max(lengths)):
        parts = [(i, min(start, length), min(start + chunk, length)) for i, length in enumerate(lengths)]
        parts = [part for part in parts if part[1] < part[2]]
        if parts:
            yield parts
        start += chunk


def logits_equal_reference(family: Family, prompt: Prompt, tolerance: float = 1e-4) -> None:
    """Logits of every token equal Hugging Face's, and so does every greedy choice."""
    [hidden] = run_decoder(family.model, [prompt], dtype=torch.float32)
    logits = family.model.compute_logits(hidden)
    expected = family.reference_logits(prompt)
    torch.testing.assert_close(logits, expected, rtol=0, atol=tolerance)
    assert torch.equal(logits.argmax(-1), expected.argmax(-1))


def features_equal_reference(family: Family, prompt: Prompt, tolerance: float = 1e-4) -> None:
    """Features of every item equal Hugging Face's."""
    torch.testing.assert_close(
        encode(family.model, [prompt]), family.reference_features(prompt), rtol=0, atol=tolerance
    )


def low_precision_is_close(family: Family, prompt: Prompt, dtype: torch.dtype) -> None:
    """Logits with weights, activations and cache in ``dtype`` are those of float32 but for rounding."""
    model = load_model(family.folder, dtype=dtype, device=CPU).model
    [hidden] = run_decoder(model, [prompt], chunks=(5, 1), dtype=dtype)
    assert hidden.dtype == dtype
    expected = family.reference_logits(prompt)
    error = (model.compute_logits(hidden) - expected).square().mean().sqrt()
    assert error < 0.03 * expected.std()


def chunked_equals_whole(family: Family, prompt: Prompt, chunks: Sequence[int]) -> None:
    """Prefilling in chunks, and decoding, gives what one prefill gives."""
    [whole] = run_decoder(family.model, [prompt], dtype=torch.float32)
    [chunked] = run_decoder(family.model, [prompt], chunks=chunks, dtype=torch.float32)
    torch.testing.assert_close(chunked, whole, rtol=0, atol=1e-5)


def batch_equals_single(family: Family, prompts: Sequence[Prompt], chunks: Sequence[int] = ()) -> None:
    """A batch gives what its prompts give one by one."""
    together = run_decoder(family.model, prompts, chunks=chunks, dtype=torch.float32)
    for prompt, hidden in zip(prompts, together, strict=True):
        [alone] = run_decoder(family.model, [prompt], dtype=torch.float32)
        torch.testing.assert_close(hidden, alone, rtol=0, atol=1e-5)


def packed_equals_alone(family: Family, prompts: Sequence[Prompt]) -> None:
    """Units that are encoded together have the features that they have alone."""
    alone = [encode(family.model, [prompt]) for prompt in prompts]
    torch.testing.assert_close(encode(family.model, prompts), torch.cat(alone), rtol=0, atol=1e-5)


def every_element_is_loaded_once(checkpoint: Checkpoint, text_group: Group, vision_group: Group) -> None:
    """Parts of a weight do not overlap, and no element is left as it was allocated."""
    context = BuildContext(
        text=Placement(text_group, torch.float32, CPU),
        vision=Placement(vision_group, torch.float32, CPU),
        normalisation=checkpoint.normalisation,
    )
    with _empty_memory_is_nan():
        model = checkpoint.entry.build(checkpoint.config, context)
    fill_model(model, checkpoint.folder, lambda name: checkpoint.entry.module_name(name, checkpoint.config))
    for path, weight in model.named_parameters():
        assert isinstance(weight, Weight)
        assert not weight.isnan().any(), path
        taken = sorted((piece.target_start, piece.length) for part in weight.parts.values() for piece in part.pieces)
        assert all(start + length <= after for (start, length), (after, _) in pairwise(taken)), path


@contextmanager
def _empty_memory_is_nan() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.empty(1).isnan()
        yield
    finally:
        torch.use_deterministic_algorithms(False)


Sharding = tuple[bool, bool]
"""Whether the language model, and whether the tower, is sharded over all ranks."""


def sharded_equals_whole(
    family: Family, pool: RankPool, size: int, prompts: Sequence[Prompt], sharding: Sharding, dtype: torch.dtype
) -> None:
    """Features and hidden states on ``size`` ranks equal those of one rank, on every rank."""
    tolerance = 1e-10 if dtype == torch.float64 else 1e-5
    expected = _compute_on_rank(SOLO, family.folder, prompts, sharding, dtype)
    for computed in pool.run(size, _compute_on_rank, family.folder, prompts, sharding, dtype):
        torch.testing.assert_close(computed, expected, rtol=0, atol=tolerance)


def _compute_on_rank(
    group: Group, folder: Path, prompts: Sequence[Prompt], sharding: Sharding, dtype: torch.dtype
) -> list[Tensor]:
    """Features, hidden states and logits of the prompts."""
    text_group, vision_group = (group if is_sharded else SOLO for is_sharded in sharding)
    model = load_model(folder, dtype=dtype, device=CPU, text_group=text_group, vision_group=vision_group).model
    hidden = run_decoder(model, prompts, chunks=(7, 1), dtype=dtype)
    logits = model.compute_logits(hidden[-1])
    return [encode(model, prompts), *hidden, *([logits] if dtype == torch.float32 else [])]


def encoder_mode_equals_one_rank(
    family: Family, pool: RankPool, size: int, prompts: Sequence[Prompt], mode: EncoderMode, dtype: torch.dtype
) -> None:
    """A plan's features on ``size`` ranks equal one rank's, on every rank, in storage of exactly their size.

    Whole units are equal to the last bit, wherever they are placed; sharded weights add up in another order.
    """
    [alone] = pool.run(1, encode_on_rank, family.folder, prompts, "data", dtype)
    computed = pool.run(size, encode_on_rank, family.folder, prompts, mode, dtype)
    tolerance = 0.0 if mode != "weights" else 1e-10 if dtype == torch.float64 else 1e-5
    for rank in computed:
        assert rank.features.keys() == alone.features.keys()
        for key, features in rank.features.items():
            torch.testing.assert_close(features, alone.features[key], rtol=0, atol=tolerance)
        assert rank.storage_bytes == {key: features.nbytes for key, features in rank.features.items()}
    share = max(rank.num_encoder_weights for rank in computed) / alone.num_encoder_weights
    assert share < 0.75 if mode == "weights" else share == 1, "what is not sharded weighs much in a small model"
    if mode == "weights":
        assert all(rank.keys_read == alone.keys_read for rank in computed)
    else:
        read = [key for rank in computed for key in rank.keys_read]
        assert sorted(read) == sorted(alone.keys_read), "every unit's pixels are read by exactly one rank"


def rows_by_key(prompts: Sequence[Prompt]) -> dict[str, npt.NDArray[np.uint8]]:
    """Each unit's pixels, uint8 [patches, row_bytes]."""
    return {
        unit.key: pixels[unit.pixels.first_row :][: unit.pixels.num_rows]
        for prompt in prompts
        for item, pixels in zip(prompt.items, prompt.pixels, strict=True)
        for unit in item.units
    }


class EncodedOnRank(NamedTuple):
    """What a rank has after a plan, and what it read for it."""

    features: dict[str, Tensor]
    storage_bytes: dict[str, int]
    keys_read: list[str]
    failed: frozenset[str]
    num_encoder_weights: int


def encode_on_rank(
    group: Group, folder: Path, prompts: Sequence[Prompt], mode: EncoderMode, dtype: torch.dtype, unreadable: str = ""
) -> EncodedOnRank:
    """Encode all media of some prompts as a runner does; pixels of the unit ``unreadable`` can't be read."""
    vision_group = group if mode == "weights" else SOLO
    loaded = load_model(folder, dtype=dtype, device=CPU, vision_group=vision_group)
    rows = rows_by_key(prompts)
    units = [unit for prompt in prompts for item in prompt.items for unit in item.units]
    key_of = {id(unit.pixels): unit.key for unit in units}
    keys_read: list[str] = []

    def read_rows(ref: PixelRef) -> npt.NDArray[np.uint8]:
        key = key_of[id(ref)]
        if key == unreadable:
            raise RuntimeError("gone")
        keys_read.append(key)
        return rows[key]

    plan = plan_vision(
        units, num_ranks=group.size, mode=mode, cost=lambda unit: unit_cost(loaded.facts.encoder, unit)
    )
    encoder = UnitEncoder(
        loaded.model.encode_vision, loaded.model.hidden_size, group, read_rows, CPU, dtype, packs_units=False
    )
    with torch.inference_mode():
        encoded = encoder.encode(plan)
    storage = {key: features.untyped_storage().nbytes() for key, features in encoded.features.items()}
    num_weights = sum(weight.numel() for weight in loaded.model.visual.parameters())
    return EncodedOnRank(dict(encoded.features), storage, keys_read, encoded.failed, num_weights)

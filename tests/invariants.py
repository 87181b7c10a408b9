"""What is true of every family, to be asserted with a family's own ingredients."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chiasm.config.engine import EncoderMode
from chiasm.dist.group import SOLO, Group
from chiasm.engine.runner.features import place_features
from chiasm.layers.weight import Placement, Weight
from chiasm.models import loader
from chiasm.models.entry import BuildContext, SeenUnit, SeenUnits, VisionLanguageModel
from chiasm.models.loader import LoadedModel, fill_model, load_model
from chiasm.models.registry import Checkpoint, find_entry
from chiasm.models.safetensors_files import read_tensor_names
from chiasm.ops.paged_attention import KVCache, SequenceRows, build_batch
from chiasm.ops.segments import PendingAttention, SharedRows
from chiasm.schema.facts import EncoderRates, EncoderShape, ModelFacts
from chiasm.schema.media import PixelRef, Unit
from chiasm.schema.plan import Assignment, Exchange, Share, VisionPlan
from chiasm.vision.cost import CostModel
from chiasm.vision.encode import EncodedUnits, UnitEncoder
from chiasm.vision.frames import seen_between
from chiasm.vision.plan import plan_vision
from chiasm.vision.stages import Encoder, Stages, whole_pass
from chiasm.vision.units import Piece, nearest_border, unit_layout
from tests.prompts import Prompt
from tests.ranks import RankPool
from tests.rounding import assert_equal_but_for_rounding

CPU = torch.device("cpu")
BLOCK_SIZE = 8

# Exchanges that never pay, and such as always do.
NO_CUTS = EncoderRates(0.0, 1e-9, 1e-9, 1e3, 1e-9, 4, can_overlap=False, packs_units=False)
CHEAP_EXCHANGE = EncoderRates(0.0, 1e-9, 1e-9, 1e-12, 1e-15, 4, can_overlap=False, packs_units=False)


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

    @property
    def loaded(self) -> LoadedModel:
        return LoadedModel(self.facts, self.model)


@torch.inference_mode()
def encode(loaded: LoadedModel, prompts: Sequence[Prompt]) -> Tensor:
    """Features of all media of all prompts, packed into one pass: [tokens, d]."""
    shape = loaded.facts.encoder
    rows, pieces, inverses = [], [], []
    for prompt in prompts:
        pixels = np.concatenate([np.empty((0, loaded.facts.processor.row_bytes), np.uint8), *prompt.pixels])
        for unit in prompt.units:
            layout = unit_layout(unit.grid, shape.merge_size, shape.window_blocks)
            blocks = pixels[: unit.num_patches].reshape(-1, shape.block_rows, pixels.shape[1])
            rows.append(blocks[layout.order].reshape(unit.num_patches, -1))
            pieces.append(Piece(unit.grid, 0, unit.num_rows))
            extra = np.arange(unit.num_patches, unit.num_rows)
            inverses.append(torch.from_numpy(np.concatenate([layout.inverse, extra])))
            pixels = pixels[unit.num_patches :]
    features = whole_pass(loaded.model.encode_vision(torch.from_numpy(np.concatenate(rows)), pieces))
    parts = features.split([len(inverse) for inverse in inverses])
    return torch.cat([part[inverse] for part, inverse in zip(parts, inverses, strict=True)])


def placed_features(loaded: LoadedModel, prompt: Prompt) -> list[tuple[int, Tensor]]:
    """(first token, features) of each item."""
    if not prompt.items:
        return []
    parts = encode(loaded, [prompt]).split([item.num_tokens for item in prompt.items])
    return [(item.offset, features) for item, features in zip(prompt.items, parts, strict=True)]


class _Media:
    """Features of the media of a prompt, as a runner has them for the chunks of a sequence."""

    def __init__(self, loaded: LoadedModel, prompt: Prompt) -> None:
        self._items = prompt.items
        self._placed: list[tuple[int, Tensor]] = []
        self._kept: list[SeenUnit] = []
        if not loaded.facts.num_cross_layers:
            self._placed = placed_features(loaded, prompt)
        elif prompt.items:
            parts = encode(loaded, [prompt]).split([unit.num_rows for unit in prompt.units])
            kept = [loaded.model.keep(part) for part in parts]
            cores = [unit.num_rows - unit.num_padding for unit in prompt.units]
            self._kept = [SeenUnit(*pair) for pair in zip(kept, cores, strict=True)]

    def placed(self, start: int, stop: int, first_row: int) -> list[tuple[int, Tensor]]:
        """What takes the place of tokens ``start`` to ``stop``, of which the first is a batch's ``first_row``."""
        return [(first_row + row, part) for row, part in _placed_between(self._placed, start, stop)]

    def seen(self, start: int, stop: int, first_row: int) -> list[SeenUnits]:
        """What these tokens attend to."""
        move = first_row - start
        return [
            SeenUnits(run.start + move, run.stop + move, tuple(self._kept[i] for i in run.items), run.is_before)
            for run in seen_between(self._items, start, stop)
        ]


def _placed_between(placed: Sequence[tuple[int, Tensor]], start: int, stop: int) -> Iterator[tuple[int, Tensor]]:
    """(first token behind ``start``, features) of what is placed from token ``start`` to ``stop``."""
    for first, features in placed:
        low, high = max(first, start), min(first + len(features), stop)
        if low < high:
            yield low - start, features[low - first : high - first]


@torch.inference_mode()
def run_decoder(
    loaded: LoadedModel,
    prompts: Sequence[Prompt],
    *,
    chunks: Sequence[int] = (),
    dtype: torch.dtype,
    is_last_asked: bool = False,
) -> list[Tensor]:
    """Hidden states [n, d] of each prompt, all computed in one batch, chunk by chunk.

    Args:
        loaded: the model under test.
        prompts: they share the batch.
        chunks: tokens of every prompt in each step; the rest comes in a last one.
        dtype: of the cache.
        is_last_asked: whether only the last one of each prompt is asked for, [1, d].
    """
    model = loaded.model
    media = [_Media(loaded, prompt) for prompt in prompts]
    positions = [torch.from_numpy(model.rope_positions(len(p.token_ids), p.items).positions) for p in prompts]
    lengths = [len(prompt.token_ids) for prompt in prompts]
    tables, num_blocks = _block_tables(lengths)
    shape = (num_blocks, BLOCK_SIZE, model.num_kv_heads, model.head_dim)
    caches = [KVCache.empty(*shape, dtype, CPU) for _ in range(model.num_layers)]
    hidden: list[list[Tensor]] = [[] for _ in prompts]
    for parts in _steps(lengths, chunks):
        rows = [SequenceRows(start, stop - start, tables[index]) for index, start, stop in parts]
        ids: list[int] = []
        placed: list[tuple[int, Tensor]] = []
        seen: list[SeenUnits] = []
        for index, start, stop in parts:
            placed += media[index].placed(start, stop, len(ids))
            seen += media[index].seen(start, stop, len(ids))
            ids += prompts[index].token_ids[start:stop]
        ends = list(accumulate(row.num_new_tokens for row in rows))
        asked = [end - 1 for end, (index, _, stop) in zip(ends, parts, strict=True) if stop == lengths[index]]
        embeds = model.embed_tokens(torch.tensor(ids))
        deep = place_features(embeds, placed)
        out = model.forward(
            embeds,
            torch.cat([positions[index][:, start:stop] for index, start, stop in parts], dim=1),
            caches,
            build_batch(rows, BLOCK_SIZE, CPU),
            deep,
            seen,
            torch.tensor(asked or [0]) if is_last_asked else None,
        )
        sizes = [row.num_new_tokens for row in rows]
        if is_last_asked:
            sizes = [int(stop == lengths[index]) for index, _, stop in parts]
            out = out[: len(asked)]
        for (index, _, _), own in zip(parts, out.split(sizes), strict=True):
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


def logits_equal_reference(family: Family, prompt: Prompt) -> None:
    """Logits of every token equal Hugging Face's, so a greedy choice is another only of two that are as good."""
    [hidden] = run_decoder(family.loaded, [prompt], dtype=torch.float32)
    logits = family.model.compute_logits(hidden)
    expected = family.reference_logits(prompt)
    assert_equal_but_for_rounding(logits, expected)


def features_equal_reference(family: Family, prompt: Prompt) -> None:
    """Features of every item equal Hugging Face's."""
    assert_equal_but_for_rounding(encode(family.loaded, [prompt]), family.reference_features(prompt))


def low_precision_is_close(family: Family, prompt: Prompt, dtype: torch.dtype) -> None:
    """Logits with weights, activations and cache in ``dtype`` are those of float32 but for rounding.

    Measured in epsilons of ``dtype`` times the logits' deviation: half of the tokens are within 4, nine in ten within
    8. Where two experts are nearly as good, rounding may choose the other one, and a CPU's kernels decide how.
    """
    loaded = load_model(family.folder, dtype=dtype, device=CPU)
    [hidden] = run_decoder(loaded, [prompt], chunks=(5, 1), dtype=dtype)
    assert hidden.dtype == dtype
    expected = family.reference_logits(prompt)
    errors = (loaded.model.compute_logits(hidden) - expected).square().mean(-1).sqrt()
    epsilons = errors / expected.std() / torch.finfo(dtype).eps
    assert epsilons.median() < 4
    assert epsilons.quantile(0.9) < 8


def chunked_equals_whole(family: Family, prompt: Prompt, chunks: Sequence[int]) -> None:
    """Prefilling in chunks, and decoding, gives what one prefill gives."""
    [whole] = run_decoder(family.loaded, [prompt], dtype=torch.float32)
    [chunked] = run_decoder(family.loaded, [prompt], chunks=chunks, dtype=torch.float32)
    assert_equal_but_for_rounding(chunked, whole)


def batch_equals_single(family: Family, prompts: Sequence[Prompt], chunks: Sequence[int] = ()) -> None:
    """A batch gives what its prompts give one by one, and their last tokens the same if no others are asked for."""
    together = run_decoder(family.loaded, prompts, chunks=chunks, dtype=torch.float32)
    asked = run_decoder(family.loaded, prompts, chunks=chunks, dtype=torch.float32, is_last_asked=True)
    for prompt, hidden, last in zip(prompts, together, asked, strict=True):
        [alone] = run_decoder(family.loaded, [prompt], dtype=torch.float32)
        assert_equal_but_for_rounding(hidden, alone)
        assert_equal_but_for_rounding(last, hidden[-1:])


def packed_equals_alone(family: Family, prompts: Sequence[Prompt]) -> None:
    """Units that are encoded together have the features that they have alone."""
    alone = [encode(family.loaded, [prompt]) for prompt in prompts]
    assert_equal_but_for_rounding(encode(family.loaded, prompts), torch.cat(alone))


def every_element_is_loaded_once(checkpoint: Checkpoint, text_group: Group, vision_group: Group) -> None:
    """Parts of a weight do not overlap, and no element is left as it was allocated."""
    context = BuildContext(
        text=Placement(text_group, torch.float32, CPU),
        vision=Placement(vision_group, torch.float32, CPU),
        normalisation=checkpoint.normalisation,
        tensor_names=read_tensor_names(checkpoint.folder),
    )
    with _empty_memory_is_nan():
        model = checkpoint.entry.build(checkpoint.config, context)
    fill_model(model, checkpoint.folder, lambda name: checkpoint.entry.module_name(name, checkpoint.config))
    for path, weight in model.named_parameters():
        assert isinstance(weight, Weight)
        assert not weight.isnan().any(), path
        taken = sorted(
            (-1 if part.index is None else part.index, piece.target_start, piece.length)
            for part in weight.parts.values()
            for piece in part.pieces
        )
        for (index, start, length), (other, after, _) in pairwise(taken):
            assert index != other or start + length <= after, path


def names_and_shapes_fit(raw: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> None:
    """Every tensor of a checkpoint with the config ``raw`` has its place in the model, and every place a tensor."""
    entry = find_entry(raw["model_type"])
    config = entry.parse_config(raw)
    placement = Placement(SOLO, torch.bfloat16, torch.device("meta"))
    context = BuildContext(placement, placement, entry.normalisation({}), frozenset(shapes))
    slots = loader._find_slots(entry.build(config, context))
    targets = {entry.module_name(name, config): shape for name, shape in shapes.items()}
    targets.pop(None, None)
    assert targets == {name: weight.parts[part].source_shape for name, (weight, part) in slots.items()}


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
    expected = _compute_on_rank(SOLO, family.folder, prompts, sharding, dtype)
    for computed in pool.run(size, _compute_on_rank, family.folder, prompts, sharding, dtype):
        for own, whole in zip(computed, expected, strict=True):
            assert_equal_but_for_rounding(own, whole)


def _compute_on_rank(
    group: Group, folder: Path, prompts: Sequence[Prompt], sharding: Sharding, dtype: torch.dtype
) -> list[Tensor]:
    """Features, hidden states and logits of the prompts."""
    text_group, vision_group = (group if is_sharded else SOLO for is_sharded in sharding)
    loaded = load_model(folder, dtype=dtype, device=CPU, text_group=text_group, vision_group=vision_group)
    hidden = run_decoder(loaded, prompts, chunks=(7, 1), dtype=dtype)
    logits = loaded.model.compute_logits(hidden[-1])
    return [encode(loaded, prompts), *hidden, *([logits] if dtype == torch.float32 else [])]


def encoder_mode_equals_one_rank(
    family: Family, pool: RankPool, size: int, prompts: Sequence[Prompt], mode: EncoderMode, dtype: torch.dtype
) -> None:
    """A plan's features on ``size`` ranks equal one rank's, on every rank, in storage of exactly their size."""
    units = units_of(prompts)
    for rates in (NO_CUTS, CHEAP_EXCHANGE):
        model = CostModel(family.facts.encoder, rates, size)
        plan = plan_vision(units, num_ranks=size, mode=mode, model=model)
        is_cut = any(assignment.is_cut for assignment in plan.assignments)
        can_cut = mode == "auto" and family.facts.encoder.can_cut_rows
        assert is_cut == (can_cut and rates is CHEAP_EXCHANGE), "prompts with one large unit show both"
        plan_equals_one_rank(family, pool, size, prompts, plan, dtype)


def steps_equal_one_step(
    family: Family, pool: RankPool, prompts: Sequence[Prompt], size: int, mode: EncoderMode
) -> None:
    """A plan that takes several steps gives the same bits as in one, on every rank, and exchanges as much."""
    units = units_of(prompts)
    model = CostModel(family.facts.encoder, CHEAP_EXCHANGE, size)
    plan = plan_vision(units, num_ranks=size, mode=mode, model=model)
    can_cut = size > 1 and mode == "auto" and family.facts.encoder.can_cut_rows
    assert any(assignment.is_cut for assignment in plan.assignments) == can_cut, "prompts with one large unit"
    of_steps = {
        num_steps: pool.run(size, encode_on_rank, family.folder, prompts, plan, torch.float32, (), (), num_steps)
        for num_steps in (1, 2, 3, family.facts.encoder.num_stages)
    }
    for in_steps in of_steps.values():
        for computed, whole in zip(in_steps, of_steps[1], strict=True):
            assert computed.features.keys() == whole.features.keys() == {unit.key for unit in units}
            assert all(torch.equal(features, whole.features[key]) for key, features in computed.features.items())
            assert (computed.exchanged_bytes, computed.rows_read) == (whole.exchanged_bytes, whole.rows_read)


STEPS: list[tuple[int, EncoderMode]] = [(1, "auto"), (2, "data"), (2, "auto"), (2, "weights")]
"""Ranks and modes for ``steps_equal_one_step``."""


def row_cuts_equal_one_rank(
    family: Family,
    pool: RankPool,
    size: int,
    prompts: Sequence[Prompt],
    cuts: Sequence[Sequence[tuple[int, float]]],
    exchanges: Sequence[Exchange],
    dtype: torch.dtype,
) -> None:
    """Units cut at will, as ``cut_plan`` has it, have the features that they have on one rank."""
    plan = cut_plan(family.facts.encoder, units_of(prompts), cuts, exchanges)
    plan_equals_one_rank(family, pool, size, prompts, plan, dtype)


def cut_plan(
    shape: EncoderShape,
    units: Sequence[Unit],
    cuts: Sequence[Sequence[tuple[int, float]]],
    exchanges: Sequence[Exchange],
) -> VisionPlan:
    """For each unit the ranks that share it, each with the part of the unit where its rows end.

    What allowed borders leave of a rank's rows may be nothing; then it has no share. Heads that can't be swapped
    among so many ranks make an all-gather of an all-to-all.
    """
    assignments = []
    for unit, cut, exchange in zip(units, cuts, exchanges, strict=True):
        shares, start = [], 0
        for rank, part in cut:
            row = part * unit.num_rows
            stop = nearest_border(unit.grid, shape.merge_size, shape.window_blocks, row, unit.num_extra)
            if stop > start:
                shares.append(Share(rank, start, stop))
                start = stop
        assert start == unit.num_rows
        kind: Exchange = "none" if len(shares) == 1 else exchange
        if kind == "all-to-all" and shape.num_heads % len(shares):
            kind = "all-gather"
        assignments.append(Assignment(unit, tuple(shares), kind))
    return VisionPlan(tuple(assignments), "a test", 0.0)


def plan_equals_one_rank(
    family: Family, pool: RankPool, size: int, prompts: Sequence[Prompt], plan: VisionPlan, dtype: torch.dtype
) -> None:
    """Whole units are equal to the last bit, wherever they are placed, if none is cut.

    Cut units and sharded weights add up in another order. A rank reads the pixels of its own rows and no others.
    """
    whole = [Share(0, 0, unit.num_rows) for unit in plan.units]
    one = VisionPlan(tuple(Assignment(u, (s,)) for u, s in zip(plan.units, whole, strict=True)), "one rank", 0.0)
    [alone] = pool.run(1, encode_on_rank, family.folder, prompts, one, dtype)
    computed = pool.run(size, encode_on_rank, family.folder, prompts, plan, dtype)
    is_sharded = any(not assignment.shares for assignment in plan.assignments)
    is_exact = not is_sharded and not any(assignment.is_cut for assignment in plan.assignments)
    for number, rank in enumerate(computed):
        assert rank.features.keys() == alone.features.keys()
        for key, features in rank.features.items():
            if is_exact:
                assert torch.equal(features, alone.features[key])
            else:
                assert_equal_but_for_rounding(features, alone.features[key])
        assert rank.storage_bytes == {key: features.nbytes for key, features in rank.features.items()}
        own = {
            assignment.unit.key: max(0, min(share.stop, assignment.unit.num_patches) - share.start)
            for assignment in plan.assignments
            for share in assignment.shares or (Share(number, 0, assignment.unit.num_rows),)
            if share.rank == number
        }
        assert rank.rows_read == own, "a rank reads the pixels of its rows and no others"
    if not is_sharded:
        assert computed[0].exchanged_bytes == predicted_bytes(family.facts.encoder, plan, size, dtype)
    share = max(rank.num_encoder_weights for rank in computed) / alone.num_encoder_weights
    assert share < 0.75 if is_sharded and size > 1 else share == 1, "what is not sharded weighs much in a small model"


def predicted_bytes(shape: EncoderShape, plan: VisionPlan, size: int, dtype: torch.dtype) -> tuple[int, ...]:
    """What the cost model says that each rank receives within the tower."""
    rates = msgspec.structs.replace(NO_CUTS, bytes_per_element=dtype.itemsize)
    received = CostModel(shape, rates, size).price(plan.assignments).exchanged_bytes
    tokens = [0] * size
    for assignment in plan.assignments:
        for share in assignment.shares:
            tokens[share.rank] += assignment.unit.num_tokens * share.num_rows // assignment.unit.num_rows
    row_bytes = shape.feature_size * dtype.itemsize
    return tuple(total - (sum(tokens) - own) * row_bytes for total, own in zip(received, tokens, strict=True))


def units_of(prompts: Sequence[Prompt]) -> list[Unit]:
    """All units of some prompts."""
    return [unit for prompt in prompts for item in prompt.items for unit in item.units]


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
    rows_read: dict[str, int]
    failed: frozenset[str]
    exchanged_bytes: tuple[int, ...]
    num_encoder_weights: int


class _CountedRows(np.ndarray[Any, np.dtype[np.uint8]]):
    """Rows that tell how many of them are taken out by an index."""

    note: Callable[[int], None]

    def __getitem__(self, index: Any) -> Any:
        taken = np.asarray(super().__getitem__(index))
        self.note(taken.reshape(-1, taken.shape[-1]).shape[0])
        return taken

    def __array_finalize__(self, source: Any) -> None:
        self.note = getattr(source, "note", lambda _: None)


def encode_on_rank(
    group: Group,
    folder: Path,
    prompts: Sequence[Prompt],
    plan: VisionPlan,
    dtype: torch.dtype,
    unreadable: Sequence[tuple[int, str]] = (),
    failing: Sequence[int] = (),
    num_steps: int = 1,
) -> EncodedOnRank:
    """Obey a plan as a runner does.

    Args:
        group: the ranks.
        folder: of the checkpoint.
        prompts: whose media the plan is about.
        plan: what to do.
        dtype: of the weights.
        unreadable: (rank, unit key) of pixels that can't be read.
        failing: ranks whose second full-attention layer fails.
        num_steps: in which the passes are computed, or as many as they have stages.

    Raises:
        AssertionError: if the encoder reports an error and none was asked for.
    """
    is_sharded = any(not assignment.shares for assignment in plan.assignments)
    loaded = load_model(folder, dtype=dtype, device=CPU, vision_group=group if is_sharded else SOLO)
    rows = rows_by_key(prompts)
    key_of = {id(unit.pixels): unit.key for unit in plan.units}
    rows_read: dict[str, int] = {}

    def read_rows(ref: PixelRef) -> npt.NDArray[np.uint8]:
        key = key_of[id(ref)]
        if (group.rank, key) in unreadable:
            raise RuntimeError("gone")
        counted = rows[key].view(_CountedRows)
        counted.note = lambda number: rows_read.update({key: rows_read.get(key, 0) + number})
        return counted

    encoder = UnitEncoder(
        encoder=loaded.model.encode_vision if group.rank not in failing else _fail_in_layer(loaded.model, 1),
        shape=loaded.facts.encoder,
        row_bytes=loaded.facts.processor.row_bytes,
        group=group,
        read_rows=read_rows,
        device=CPU,
        dtype=dtype,
        packs_units=False,
    )
    with _errors_of("chiasm.vision") as errors:
        encoded = encode_in_steps(encoder, plan, num_steps)
    assert not errors or unreadable or failing, errors
    storage = {key: features.untyped_storage().nbytes() for key, features in encoded.features.items()}
    num_weights = sum(weight.numel() for weight in loaded.model.visual.parameters())
    return EncodedOnRank(
        dict(encoded.features), storage, rows_read, encoded.failed, encoded.exchanged_bytes, num_weights
    )


@torch.inference_mode()
def encode_in_steps(encoder: UnitEncoder, plan: VisionPlan, num_steps: int) -> EncodedUnits:
    """What a plan gives in so many steps, or as many as its passes have stages, as if it had been one step.

    Between them ranks exchange something else, as they do when the language model goes on.
    """
    num_stages = encoder.shape.num_stages
    stops = sorted({-(-num_stages * step // num_steps) for step in range(1, num_steps + 1)})
    under_way = encoder.begin(plan)
    steps = []
    for stop in stops:
        steps.append(under_way.advance(stop))
        assert bool(steps[-1].features) <= (stop == num_stages)
        assert encoder.group.all_reduce(torch.ones(3)).tolist() == [encoder.group.size] * 3
    failed = [key for step in steps for key in step.failed]
    assert len(set(failed)) == len(failed), "a failure is told once"
    return EncodedUnits(
        steps[-1].features,
        frozenset(failed),
        tuple(map(sum, zip(*(step.seconds for step in steps), strict=True))),
        sum(step.makespan for step in steps),
        tuple(map(sum, zip(*(step.exchanged_bytes for step in steps), strict=True))),
        tuple(span for step in steps for span in step.spans),
    )


@contextmanager
def _errors_of(logger: str) -> Iterator[list[str]]:
    """What is logged as an error meanwhile: a failure that the encoder survives would pass unseen."""
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger(logger).addHandler(handler)
    try:
        yield errors
    finally:
        logging.getLogger(logger).removeHandler(handler)


def _fail_in_layer(model: VisionLanguageModel, layer: int) -> Encoder:
    """A tower that breaks after it has sent its rows for a layer, whenever it shares any."""

    class Breaking:
        def __init__(self, shared: SharedRows) -> None:
            self._shared = shared
            self._calls = 0

        @property
        def num_rows(self) -> int:
            return self._shared.num_rows

        def begin(self, q: Tensor, k: Tensor, v: Tensor) -> PendingAttention:
            pending = self._shared.begin(q, k, v)
            self._calls += 1
            if self._calls > layer:
                raise RuntimeError("out of memory")
            return pending

    def encode_vision(pixels: Tensor, pieces: Sequence[Piece], shared: SharedRows | None = None) -> Stages:
        return model.encode_vision(pixels, pieces, None if shared is None else Breaking(shared))

    return encode_vision

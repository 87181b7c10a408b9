"""The biggest step that the settings allow, run once at start-up to learn what memory it takes beside the weights.

On a GPU it is computed, and torch's allocator asked for the peak; the same on a CPU would take long, so there the
tensors are only made (``AllocationCounter``). Every rank does this at the same time.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, NamedTuple, Protocol

import numpy as np
import torch

from chiasm.engine.runner.allocations import AllocationCounter
from chiasm.engine.runner.features import place_features
from chiasm.engine.runner.launch import Launch
from chiasm.engine.runner.steps import HostStep
from chiasm.models.entry import SeenUnit, SeenUnits, VisionLanguageModel
from chiasm.ops.paged_attention import KVCache, SequenceRows
from chiasm.ops.single_rows import MOST_KEYS, can_attend_single_rows
from chiasm.sampling.rows import SamplingRow
from chiasm.sampling.sampler import sample
from chiasm.schema.facts import ModelFacts
from chiasm.schema.sampling import SamplingParams
from chiasm.schema.wire import Growth, StepMemory
from chiasm.vision.units import Piece

# It cuts the whole vocabulary and reports log-probabilities: nothing that can be asked for takes more.
_SAMPLING = SamplingParams(temperature=1.0, top_p=0.9999, min_p=0.01, logprobs=20, seed=0)
_COUNTED_SEQUENCES = 4
_LEAST_TOKENS = 16  # of a step that is worth setting


class Meter(Protocol):
    """Bytes of tensors made since it was entered."""

    @property
    def live_bytes(self) -> int:
        """Of those that still exist."""

    @property
    def peak_bytes(self) -> int:
        """Most of these at a time."""

    def __enter__(self) -> object:
        """Begin."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End."""


class CudaMeter:
    """What torch's allocator tells of a GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._base = 0

    @property
    def live_bytes(self) -> int:
        """Of tensors that still exist."""
        return torch.cuda.memory_allocated(self._device) - self._base

    @property
    def peak_bytes(self) -> int:
        """Most of these at a time."""
        return torch.cuda.max_memory_allocated(self._device) - self._base

    def __enter__(self) -> CudaMeter:
        """Begin."""
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        self._base = torch.cuda.memory_allocated(self._device)
        return self

    def __exit__(self, *_: object) -> None:
        """Let others have the memory that the allocator keeps."""
        torch.cuda.synchronize(self._device)
        torch.cuda.empty_cache()


Packing = Literal["apart", "together", "cut"]
"""How a rank's units are in passes; "cut" where a step may be one pass over units that ranks share."""


@dataclass(frozen=True)
class StepLimits:
    """How big a step may be.

    Attributes:
        num_tokens: most rows of the language model.
        num_seqs: most sequences.
        num_patches: most rows of the encoder, but for a single unit that has more.
        max_model_len: longest sequence that there can be.
        block_size: tokens in a block of the cache.
        num_ranks: that units are placed on.
        packing: of a rank's units.
    """

    num_tokens: int
    num_seqs: int
    num_patches: int
    max_model_len: int
    block_size: int
    num_ranks: int
    packing: Packing


class _Measured(NamedTuple):
    """Of a number of rows, the peak and what is held between layers or behind them, in bytes."""

    num_rows: int
    peak: int
    held: int


@dataclass(frozen=True)
class BiggestStep:
    """Runs and measures it.

    Attributes:
        model: loaded.
        facts: of it, with the server's own limits on media.
        launch: how work is brought to the device.
        limits: on a step.
        device: of the rank.
        dtype: of activations.
    """

    model: VisionLanguageModel
    facts: ModelFacts
    launch: Launch
    limits: StepLimits
    device: torch.device
    dtype: torch.dtype

    @torch.inference_mode()
    def measure(self, *, has_smaller: bool) -> StepMemory:
        """Bytes beside weights and caches.

        Args:
            has_smaller: whether smaller steps are measured too, to be told what they would save.

        Raises:
            torch.OutOfMemoryError: if it does not even fit alone.
        """
        unit_rows = self._unit_rows
        num_rows = max(self.limits.num_patches, unit_rows)
        vision = [self._vision(num_rows, min(num_rows, self._share(num_rows)))]
        if has_smaller:
            # The share of a rank is a line only where it is less than all rows, which for few units it is not.
            vision.append(self._vision(unit_rows, self._share(unit_rows)))
        language = [self._language(num_tokens) for num_tokens in self._numbers_of_tokens(has_smaller=has_smaller)]
        numbers_of_seqs = (self.limits.num_seqs, 1) if has_smaller else (self.limits.num_seqs,)
        sampling = [self._sampling(num_seqs) for num_seqs in numbers_of_seqs]
        return StepMemory(
            vision=_growth(vision),
            held=_growth([one._replace(peak=one.held) for one in vision]),
            forward=_growth(language),
            kept=_growth([one._replace(peak=one.held) for one in language]),
            sampling=_growth(sampling),
            is_beside=self.launch.encoder_stream.is_beside,
            num_tokens=self.limits.num_tokens,
            num_seqs=self.limits.num_seqs,
            num_patches=self.limits.num_patches,
            unit_patches=unit_rows,
        )

    def _meter(self) -> Meter:
        return AllocationCounter() if self.device.type == "cpu" else CudaMeter(self.device)

    @property
    def _unit_rows(self) -> int:
        """Rows of the largest unit."""
        shape = self.facts.encoder
        if shape.canvas is not None:
            return shape.canvas.unit_rows
        return self._largest_piece().num_rows

    def _largest_piece(self) -> Piece:
        shape = self.facts.encoder
        if shape.canvas is not None:
            canvas = shape.canvas
            return Piece((canvas.side, canvas.side * canvas.num_tiles), 0, canvas.unit_rows)
        if shape.tile_side:
            return Piece.whole((shape.tile_side, shape.tile_side))
        return _square(min(self.facts.max_unit_tokens, self.limits.max_model_len), shape.merge_size)

    def _share(self, num_rows: int) -> int:
        """Most rows of ``num_rows`` that a rank computes.

        Cut, the busiest rank has no more than a fair share and a unit. Of a cut unit it computes some rows, and has
        all keys and values of a layer: no more than all rows of the unit take.
        """
        if self.limits.packing != "cut":
            return num_rows
        return -(-num_rows // self.limits.num_ranks) + self._unit_rows

    def _vision(self, num_rows: int, own: int) -> _Measured:
        """Encoding a rank's ``own`` of ``num_rows``, in units as large as there are, and sharing all features.

        Returned with it is the number of which these units are a rank's own.
        """
        unit = self._largest_piece()
        if self.limits.packing == "apart":
            # One after another, a layer of each: between layers all hold what they need, within one of them one more.
            one = self._pass([unit])
            held = one.held * own // unit.num_rows
            encoded = _Measured(num_rows, held + one.peak - one.held, held)
        else:
            encoded = self._pass(self._pieces(unit, own))
            if own != num_rows:
                encoded = encoded._replace(num_rows=(encoded.num_rows - unit.num_rows) * self.limits.num_ranks)
        return encoded._replace(peak=max(encoded.peak, self._gathered_bytes(num_rows)))

    def _pieces(self, unit: Piece, num_rows: int) -> list[Piece]:
        shape = self.facts.encoder
        pieces = [unit] * max(1, num_rows // unit.num_rows)
        rest = (num_rows - len(pieces) * unit.num_rows) // shape.block_rows
        has_one_size = shape.canvas is not None or bool(shape.tile_side)
        return pieces if has_one_size or rest <= 0 else [*pieces, _rectangle(rest, shape.merge_size)]

    def _pass(self, pieces: Sequence[Piece]) -> _Measured:
        num_pixels = sum(min(piece.num_rows, math.prod(piece.grid)) for piece in pieces)
        held = 0
        meter = self._meter()
        with meter:
            size = (num_pixels, self.facts.processor.row_bytes)
            stages = self.model.encode_vision(torch.empty(size, dtype=torch.uint8, device=self.device), pieces)
            for _ in stages:
                held = max(held, meter.live_bytes)
        return _Measured(sum(piece.num_rows for piece in pieces), meter.peak_bytes, held)

    def _gathered_bytes(self, num_rows: int) -> int:
        """Features of a step while the ranks share them: apart, put together, sent and received."""
        shape = self.facts.encoder
        num_tokens = num_rows // (1 if shape.canvas else shape.block_rows)
        copies = 2 if self.limits.num_ranks == 1 else 4
        return copies * num_tokens * shape.feature_size * self.dtype.itemsize

    def _numbers_of_tokens(self, *, has_smaller: bool) -> Iterator[int]:
        """That of the biggest step, quarters of it if asked, and one for each sequence, as in recorded steps."""
        num_tokens = self.limits.num_tokens
        least = max(self.limits.num_seqs, _LEAST_TOKENS)
        yield num_tokens
        while num_tokens > least and (has_smaller or self.launch.decoding is not None):
            num_tokens = max(num_tokens // 4, least) if has_smaller else least
            yield num_tokens

    def _language(self, num_tokens: int) -> _Measured:
        """A batch of the language model, in its layers and behind them."""
        sequences = self._sequences(num_tokens)
        num_rows = sum(sequence.num_new_tokens for sequence in sequences)
        model, limits = self.model, self.limits
        shape = (len(sequences[0].block_ids), limits.block_size, model.num_kv_heads, model.head_dim)
        caches = [KVCache.empty(*shape, self.dtype, self.device)] * model.num_layers
        features = torch.empty(num_rows, self.facts.encoder.feature_size, dtype=self.dtype, device=self.device)
        seen = self._seen(num_rows)
        rows = np.zeros(num_rows, dtype=np.int64)
        positions = np.zeros((len(model.rope_positions(1, ()).positions), num_rows), dtype=np.int64)
        host = HostStep(rows, positions, rows[: limits.num_seqs], sequences)
        meter = self._meter()
        with meter:
            step = self.launch.inputs.make(host)
            embeds = model.embed_tokens(step.token_ids)
            deep = None if seen else place_features(embeds, [(0, features)])
            hidden = model.forward(embeds, step.positions, caches, step.batch, deep, seen)
            live = meter.live_bytes
        del hidden
        return _Measured(num_rows, meter.peak_bytes, live)

    def _sequences(self, num_tokens: int) -> list[SequenceRows]:
        """The newest rows of a sequence of full length, and others that decode at the same length.

        They share their blocks, in an order that is not that of memory. On a CPU sequences are attended one after
        another, but for those whose rows are gone through together, so that few of them tell as much as many.
        """
        limits = self.limits
        length = limits.max_model_len
        num_seqs = min(limits.num_seqs, num_tokens)
        num_decoding = num_seqs - 1
        if self.device.type == "cpu":
            num_together = MOST_KEYS // length if can_attend_single_rows(self.device, self.dtype) else 0
            num_decoding = min(num_decoding, max(_COUNTED_SEQUENCES - 1, num_together))
        block_ids = range(-(-length // limits.block_size))[::-1]
        left = num_tokens - num_decoding
        sequences = [SequenceRows(length - min(left, length), min(left, length), block_ids)]
        sequences += [SequenceRows(length - 1, 1, block_ids)] * num_decoding
        while (left := left - length) > 0 and len(sequences) < num_seqs:
            sequences.append(SequenceRows(length - min(left, length), min(left, length), block_ids))
        return sequences

    def _seen(self, num_rows: int) -> list[SeenUnits]:
        """A unit that all rows attend to, where text attends to units."""
        canvas = self.facts.encoder.canvas
        if not self.facts.num_cross_layers or canvas is None:
            return []
        size = (canvas.unit_rows, self.facts.encoder.feature_size)
        kept = self.model.keep(torch.empty(size, dtype=self.dtype, device=self.device))
        return [SeenUnits(0, num_rows, (SeenUnit(kept, canvas.num_tiles * canvas.seen_rows),), is_before=False)]

    def _sampling(self, num_seqs: int) -> _Measured:
        """Logits and sampling from them; every row takes as much."""
        is_counted = self.device.type == "cpu"
        hidden = self.model.embed_tokens(torch.zeros(1, dtype=torch.int64, device=self.device))
        meter = self._meter()
        with meter:
            last = hidden[torch.zeros(num_seqs, dtype=torch.int64, device=self.device)]
            logits = self.model.compute_logits(last)
        num_sampled = 1 if is_counted else num_seqs
        flat = torch.zeros(num_sampled, logits.shape[1], dtype=logits.dtype, device=self.device)
        rows = [SamplingRow("", _SAMPLING, [0, 0], 1)] * num_sampled
        choosing: Meter = AllocationCounter(is_computing=True) if is_counted else CudaMeter(self.device)
        with choosing:
            sample(flat, rows, ())
        return _Measured(num_seqs, meter.peak_bytes + choosing.peak_bytes * num_seqs // num_sampled, 0)


def _growth(measured: Sequence[_Measured]) -> Growth:
    """Of peaks, the largest first; of two for as many rows it is the one that counts."""
    return Growth(tuple(sorted({one.num_rows: one.peak for one in reversed(measured)}.items())))


def _square(num_tokens: int, merge_size: int) -> Piece:
    """A unit of about so many tokens, and no fewer."""
    height = math.isqrt(num_tokens)
    width = -(-num_tokens // height)
    return Piece.whole((height * merge_size, width * merge_size))


def _rectangle(num_tokens: int, merge_size: int) -> Piece:
    """A unit of exactly so many tokens."""
    height = next(side for side in range(math.isqrt(num_tokens), 0, -1) if num_tokens % side == 0)
    return Piece.whole((height * merge_size, num_tokens // height * merge_size))

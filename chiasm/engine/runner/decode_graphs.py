"""Decode steps that were recorded once and are played again: one CUDA graph for each padded number of sequences.

What a graph reads has fixed places. A step is copied there, filled up to the next number with rows that nobody reads:
each is a first token of a sequence of its own, whose one block belongs to no one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from chiasm.engine.runner.graphs import Recorded, Recorder
from chiasm.engine.runner.steps import DeviceStep, HostStep, StepArrays
from chiasm.errors import UserError
from chiasm.ops.paged_attention import SequenceRows
from chiasm.ops.paged_kernels import AttentionShape, PagedBackend
from chiasm.ops.staging import Staging, packed_size, unpacked


def bucket_sizes(max_num_seqs: int) -> tuple[int, ...]:
    """Numbers of sequences that are recorded: powers of two, and the largest number."""
    powers = [1 << exponent for exponent in range(max_num_seqs.bit_length())]
    return tuple(sorted({*powers, max_num_seqs}))


def padded_step(host: HostStep, num_sequences: int, spare_block: int) -> HostStep:
    """A decode step with as many sequences as are asked for; those added live in the spare block.

    Args:
        host: one token for each of its sequences.
        num_sequences: at least those.
        spare_block: of the cache; nothing in it is ever read by a sequence that counts.
    """
    missing = num_sequences - len(host.sequences)
    assert missing >= 0
    zeros = np.zeros((len(host.positions), missing), np.int64)
    return HostStep(
        np.concatenate([host.token_ids, zeros[0]]),
        np.concatenate([host.positions, zeros], axis=1),
        np.arange(num_sequences),
        (*host.sequences, *[SequenceRows(0, 1, (spare_block,))] * missing),
    )


class _Bucket(NamedTuple):
    """A recorded number of sequences, and where its step is read from."""

    place: Tensor
    recorded: Recorded[Tensor]


class DecodeGraphs:
    """Recorded decode steps.

    Args:
        forward: from a step to the hidden states [n, d] of its tokens, none of which is a placeholder.
        backend: the kernel of the attention.
        shape: of the attention.
        num_position_dims: rows of rotary positions.
        max_num_seqs: most sequences of a step.
        num_columns: most blocks of a sequence.
        spare_block: see ``padded_step``.
        device: where the model is.
    """

    def __init__(
        self,
        forward: Callable[[DeviceStep], Tensor],
        backend: PagedBackend,
        shape: AttentionShape,
        *,
        num_position_dims: int,
        max_num_seqs: int,
        num_columns: int,
        spare_block: int,
        device: torch.device,
    ) -> None:
        self._forward = forward
        self._backend = backend
        self._shape = shape
        self._num_columns = num_columns
        self._spare_block = spare_block
        self._device = device
        self._staging = Staging(device)
        self._nothing = HostStep(
            np.empty(0, np.int64), np.empty((num_position_dims, 0), np.int64), np.empty(0, np.int64), ()
        )
        self._sizes = bucket_sizes(max_num_seqs)
        self._buckets: dict[int, _Bucket] = {}

    def record(self, recorder: Recorder) -> None:
        """Record every number of sequences, the largest first, whose memory then serves the others.

        Raises:
            UserError: if the model does something that can't be recorded.
        """
        for size in reversed(self._sizes):
            arrays = StepArrays.of(
                padded_step(self._nothing, size, self._spare_block), self._shape, self._num_columns
            )
            place = torch.zeros(packed_size(arrays.flat), dtype=torch.uint8, device=self._device)
            self._staging.move(arrays.flat, into=place)
            step = arrays.bound(unpacked(place, arrays.flat), self._backend)
            try:
                recorder.warm_up(partial(self._forward, step))
                recorded = recorder.record(partial(self._forward, step))
            except RuntimeError as error:
                raise UserError(
                    f"a decode step of {size} sequences can't be recorded as a CUDA graph: {error}. "
                    "Start with enforce_eager.",
                    param="enforce_eager",
                ) from error
            self._buckets[size] = _Bucket(place, recorded)

    def can_run(self, sequences: Sequence[SequenceRows]) -> bool:
        """Whether each has one new token, and there are no more than were recorded."""
        return len(sequences) <= self._sizes[-1] and all(rows.num_new_tokens == 1 for rows in sequences)

    def run(self, host: HostStep) -> Tensor:
        """Hidden states [n, d] of a step; they stay until the next one."""
        size = self._sizes[bisect_left(self._sizes, len(host.sequences))]
        bucket = self._buckets[size]
        arrays = StepArrays.of(padded_step(host, size, self._spare_block), self._shape, self._num_columns)
        self._staging.move(arrays.flat, into=bucket.place)
        bucket.recorded.replay()
        return bucket.recorded.output[: len(host.sequences)]

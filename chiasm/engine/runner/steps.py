"""A step's tokens on the device: what the host knows of them, and how it gets there.

Shapes: n tokens of the packed batch, m of which are asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from chiasm.ops.paged_attention import PagedBatch, SequenceRows, build_batch
from chiasm.ops.paged_kernels import AttentionShape, BatchTables, DeviceTables, PagedBackend
from chiasm.ops.paged_tables import SpanTables, slots_of, span_tables
from chiasm.ops.staging import Staging

IntArray = npt.NDArray[np.int64]
Array = npt.NDArray[Any]
_NUM_PLAIN = 4  # arrays that stand before the tables
_NUM_TABLES = len(SpanTables._fields)


class HostStep(NamedTuple):
    """What the host knows of a step's tokens.

    Attributes:
        token_ids: [n].
        positions: rotary positions, [dims, n].
        asked_rows: [m], rows of the batch whose hidden states are asked for.
        sequences: that the tokens belong to, in order.
    """

    token_ids: IntArray
    positions: IntArray
    asked_rows: IntArray
    sequences: Sequence[SequenceRows]


class DeviceStep(NamedTuple):
    """The same where the model is.

    Attributes:
        token_ids: LongTensor [n].
        positions: LongTensor [dims, n].
        asked_rows: LongTensor [m].
        batch: for the attention of the language model.
    """

    token_ids: Tensor
    positions: Tensor
    asked_rows: Tensor
    batch: PagedBatch


class StepInputs(Protocol):
    """Brings a step's tokens to the device."""

    def make(self, host: HostStep) -> DeviceStep:
        """Bring them there."""


class PlainInputs:
    """For attention that goes through the sequences itself.

    Args:
        block_size: tokens in a block of the cache.
        device: where the model is.
    """

    def __init__(self, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        self._device = device

    def make(self, host: HostStep) -> DeviceStep:
        """See ``StepInputs``."""
        token_ids, positions, asked_rows = (torch.from_numpy(array).to(self._device) for array in host[:3])
        batch = build_batch(host.sequences, self._block_size, self._device)
        return DeviceStep(token_ids, positions, asked_rows, batch)


class KernelInputs:
    """For a kernel that takes all sequences together: everything is one copy.

    Args:
        backend: the kernel.
        shape: of the attention.
        device: where the model is.
    """

    def __init__(self, backend: PagedBackend, shape: AttentionShape, device: torch.device) -> None:
        self._backend = backend
        self._shape = shape
        self._staging = Staging(device)

    def make(self, host: HostStep) -> DeviceStep:
        """See ``StepInputs``."""
        arrays = StepArrays.of(host, self._shape)
        return arrays.bound(self._staging.move(arrays.flat), self._backend)


class StepArrays(NamedTuple):
    """All arrays of a step, in the order in which they are copied.

    Attributes:
        plain: token ids, positions, asked rows and slots.
        tables: by chunk size.
    """

    plain: tuple[Array, ...]
    tables: dict[int | None, SpanTables]

    @classmethod
    def of(cls, host: HostStep, shape: AttentionShape, num_columns: int | None = None) -> StepArrays:
        """Those of a step; ``num_columns`` is as ``span_tables`` has it."""
        tables = {
            size: span_tables(host.sequences, shape.block_size, size, num_columns) for size in shape.chunk_sizes
        }
        return cls((*host[:3], slots_of(host.sequences, shape.block_size)), tables)

    @property
    def flat(self) -> list[Array]:
        """Behind one another."""
        return [*self.plain, *(array for tables in self.tables.values() for array in tables)]

    def bound(self, moved: Sequence[Tensor], backend: PagedBackend) -> DeviceStep:
        """The step, of ``flat`` on the device."""
        token_ids, positions, asked_rows, slots = moved[:_NUM_PLAIN]
        tables = {}
        for index, (size, host) in enumerate(self.tables.items()):
            first = _NUM_PLAIN + index * _NUM_TABLES
            first_rows, first_keys, num_keys, block_table = moved[first : first + _NUM_TABLES]
            on_device = DeviceTables(first_rows, first_keys, num_keys, block_table, host.max_rows)
            tables[size] = BatchTables(host, on_device)
        return DeviceStep(token_ids, positions, asked_rows, PagedBatch((), slots, backend.bind(tables)))

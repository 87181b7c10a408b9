"""Which kernel the rows of a paged batch attend with on a GPU, chosen once; none copies what is in the cache."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from chiasm.ops.paged_attention import KVCache, PagedKernel
from chiasm.ops.paged_tables import SpanTables

_WORKSPACE_BYTES = 128 * 2**20  # what FlashInfer's documentation recommends
_FLASHINFER_HEADS = (64, 128, 256)
_FLASHINFER_DTYPES = (torch.float16, torch.bfloat16)
_MAX_SPLITS = 16


class DeviceTables(NamedTuple):
    """``SpanTables`` on a device, and the rows of the longest span."""

    first_rows: Tensor
    first_keys: Tensor
    num_keys: Tensor
    block_table: Tensor
    max_rows: int


class BatchTables(NamedTuple):
    """The spans of a batch, on the host and on the device."""

    host: SpanTables
    device: DeviceTables


TablesByChunk = Mapping[int | None, BatchTables]
"""By the chunk size of the layers that read them."""


class PagedBackend(Protocol):
    """A kernel before it knows a batch."""

    def bind(self, tables: TablesByChunk) -> PagedKernel:
        """The kernel for this batch."""


@dataclass(frozen=True)
class AttentionShape:
    """What the attention of a language model is like on this rank.

    Attributes:
        num_heads: query heads.
        num_kv_heads: key-value heads.
        head_dim: size of a head.
        block_size: tokens in a block of the cache.
        chunk_sizes: of its layers; None for those that attend to everything before.
        dtype: of queries, keys and values.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    chunk_sizes: tuple[int | None, ...]
    dtype: torch.dtype


class AttendSpans(Protocol):
    """See ``paged_triton.attend_spans``."""

    def __call__(
        self, q: Tensor, keys: Tensor, values: Tensor, tables: DeviceTables, scale: float, num_splits: int
    ) -> Tensor:
        """[n, H, D] -> [n, H, D]."""


class SpanBackend:
    """Our own kernel: any head size and type, and the only one that a CUDA graph may hold.

    Args:
        attend: the kernel.
        num_kv_heads: of this rank.
        num_processors: of the GPU; keys are split until twice as many programs run, as long as rows are few.
    """

    def __init__(self, attend: AttendSpans, num_kv_heads: int, num_processors: int) -> None:
        self._attend = attend
        self._num_kv_heads = num_kv_heads
        self._num_processors = num_processors

    def bind(self, tables: TablesByChunk) -> PagedKernel:
        """See ``PagedBackend``."""
        return _BoundSpans(self, {size: own.device for size, own in tables.items()})

    def attend(self, q: Tensor, cache: KVCache, tables: DeviceTables, scale: float) -> Tensor:
        """[n, H, D] -> [n, H, D]."""
        return self._attend(q, cache.keys, cache.values, tables, scale, self._num_splits(tables))

    def _num_splits(self, tables: DeviceTables) -> int:
        """A power of two, from what the host knows of a batch."""
        if tables.max_rows > 1:
            return 1
        wanted = 2 * self._num_processors // (len(tables.num_keys) * self._num_kv_heads)
        return 1 << (max(1, min(_MAX_SPLITS, wanted)).bit_length() - 1)


class _BoundSpans(NamedTuple):
    backend: SpanBackend
    tables: Mapping[int | None, DeviceTables]

    def attend(self, q: Tensor, cache: KVCache, scale: float, chunk_size: int | None) -> Tensor:
        return self.backend.attend(q, cache, self.tables[chunk_size], scale)


class FlashInferBackend:
    """FlashInfer's paged prefill, which serves single rows as well; planned once for each batch.

    Args:
        flashinfer: the module.
        shape: of the attention.
        device: the GPU.
    """

    def __init__(self, flashinfer: Any, shape: AttentionShape, device: torch.device) -> None:
        self._shape = shape
        # One after another on one stream: they can share what they compute in.
        workspace = torch.empty(_WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers = {
            size: flashinfer.BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD") for size in shape.chunk_sizes
        }

    def bind(self, tables: TablesByChunk) -> PagedKernel:
        """See ``PagedBackend``."""
        for size, own in tables.items():
            self._plan(self._wrappers[size], own.host)
        return _BoundFlashInfer(self._wrappers, self._shape.head_dim**-0.5)

    def _plan(self, wrapper: Any, host: SpanTables) -> None:
        shape = self._shape
        assert not host.first_keys.any(), "chunks begin with a block"
        counts = torch.from_numpy(-(-host.num_keys // shape.block_size))
        is_used = torch.arange(host.block_table.shape[1]) < counts[:, None]
        borders = torch.zeros(len(counts) + 1, dtype=torch.int32)
        torch.cumsum(counts, 0, out=borders[1:])
        wrapper.plan(
            qo_indptr=torch.from_numpy(host.first_rows),
            paged_kv_indptr=borders,
            paged_kv_indices=torch.from_numpy(host.block_table)[is_used],
            paged_kv_last_page_len=torch.from_numpy((host.num_keys - 1) % shape.block_size + 1),
            num_qo_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim_qk=shape.head_dim,
            page_size=shape.block_size,
            causal=True,
            sm_scale=shape.head_dim**-0.5,
            q_data_type=shape.dtype,
        )


class _BoundFlashInfer(NamedTuple):
    wrappers: Mapping[int | None, Any]
    planned_scale: float

    def attend(self, q: Tensor, cache: KVCache, scale: float, chunk_size: int | None) -> Tensor:
        assert scale == self.planned_scale
        out: Tensor = self.wrappers[chunk_size].run(q, (cache.keys, cache.values))
        return out


class ChosenBackends(NamedTuple):
    """What batches attend with, and why, for the start-up lines.

    Attributes:
        steps: for steps of all kinds; None goes through the sequences one by one.
        decoding: for steps that a CUDA graph holds; None where there are to be none.
        reason: of both.
    """

    steps: PagedBackend | None
    decoding: PagedBackend | None
    reason: str


def choose_backends(shape: AttentionShape, device: torch.device) -> ChosenBackends:
    """What the language model attends with.

    Args:
        shape: of its attention.
        device: of its cache.
    """
    if device.type != "cuda":
        return ChosenBackends(None, None, f"sequence by sequence (no paged kernel on {device.type})")
    own = None
    if importlib.util.find_spec("triton") is not None:
        attend = importlib.import_module("chiasm.ops.paged_triton").attend_spans
        processors = torch.cuda.get_device_properties(device).multi_processor_count
        own = SpanBackend(attend, shape.num_kv_heads, processors)
    missing = missing_for_flashinfer(shape)
    if missing is None:
        flashinfer = FlashInferBackend(importlib.import_module("flashinfer"), shape, device)
        decoding = "decoding in CUDA graphs by our Triton kernel" if own else "no CUDA graphs without Triton"
        return ChosenBackends(flashinfer, own, f"FlashInfer; {decoding}")
    if own is not None:
        return ChosenBackends(own, own, f"our Triton kernel ({missing})")
    return ChosenBackends(None, None, f"sequence by sequence, with copies of histories (no Triton; {missing})")


def missing_for_flashinfer(shape: AttentionShape) -> str | None:
    """Why FlashInfer can't be used; None if it can."""
    if importlib.util.find_spec("flashinfer") is None:
        return "FlashInfer is not installed"
    if shape.dtype not in _FLASHINFER_DTYPES:
        return f"FlashInfer takes float16 and bfloat16, not {str(shape.dtype).removeprefix('torch.')}"
    if shape.head_dim not in _FLASHINFER_HEADS:
        return f"FlashInfer takes heads of {', '.join(map(str, _FLASHINFER_HEADS))} elements, not {shape.head_dim}"
    odd = [size for size in shape.chunk_sizes if size is not None and size % shape.block_size]
    if odd:
        return f"FlashInfer reads whole blocks, and chunks of {odd[0]} tokens do not begin with blocks"
    return None

"""Paged attention by a kernel that is told of spans, against the sequences one by one."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from chiasm.ops import paged_kernels
from chiasm.ops.paged_attention import KVCache, PagedBatch, SequenceRows, build_batch, paged_attention
from chiasm.ops.paged_kernels import (
    AttendSpans,
    AttentionShape,
    BatchTables,
    DeviceTables,
    FlashInferBackend,
    PagedBackend,
    SpanBackend,
    choose_backends,
    missing_for_flashinfer,
)
from chiasm.ops.paged_tables import slots_of, span_tables
from tests.rounding import assert_equal_but_for_rounding
from tests.skipped import needs

CPU = torch.device("cpu")
BLOCK_SIZE = 4
STEPS = {
    "decoding": [SequenceRows(9, 1, [3, 7, 1]), SequenceRows(0, 1, [2]), SequenceRows(15, 1, [4, 0, 9, 5])],
    "mixed": [SequenceRows(5, 8, [3, 7, 1, 8]), SequenceRows(11, 1, [4, 0, 9]), SequenceRows(0, 7, [2, 6])],
    "prefill": [SequenceRows(0, 90, list(range(30, 7, -1)))],
}


def emulated_attend(
    q: Tensor, keys: Tensor, values: Tensor, tables: DeviceTables, scale: float, num_splits: int
) -> Tensor:
    """What the Triton kernel is to give, by the definition, span by span."""
    out = torch.full_like(q, torch.nan)
    group = q.shape[1] // keys.shape[2]
    borders = tables.first_rows.tolist()
    assert max(stop - start for start, stop in itertools.pairwise(borders)) == tables.max_rows
    for span, (start, stop) in enumerate(itertools.pairwise(borders)):
        first, total = int(tables.first_keys[span]), int(tables.num_keys[span])
        blocks = tables.block_table[span, : -(-total // keys.shape[1])].long()
        k, v = (x[blocks].flatten(0, 1)[:total].repeat_interleave(group, 1) for x in (keys, values))
        scores = torch.einsum("ihd,jhd->hij", q[start:stop], k) * scale
        last = torch.arange(total - (stop - start), total)[:, None]
        places = torch.arange(total)
        scores = scores.masked_fill((places > last) | (places < first), -torch.inf)
        out[start:stop] = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v[:total].nan_to_num())
    return out


@pytest.fixture(scope="module")
def triton_attend() -> AttendSpans:
    """Our kernel, in Triton's interpreter on the CPU."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip(needs("Triton", "pip install triton, and set TRITON_INTERPRET=1"))
    attend: AttendSpans = importlib.import_module("chiasm.ops.paged_triton").attend_spans
    return attend


def kernel_batch(rows: list[SequenceRows], backend: PagedBackend, chunk_size: int | None) -> PagedBatch:
    host = span_tables(rows, BLOCK_SIZE, chunk_size)
    device = DeviceTables(*map(torch.from_numpy, host), host.max_rows)
    kernel = backend.bind({chunk_size: BatchTables(host, device)})
    return PagedBatch((), torch.from_numpy(slots_of(rows, BLOCK_SIZE)), kernel)


def assert_equal_one_by_one(
    attend: AttendSpans, rows: list[SequenceRows], *, heads: tuple[int, int], head_dim: int, chunk_size: int | None
) -> None:
    num_heads, num_kv_heads = heads
    num_rows = sum(row.num_new_tokens for row in rows)
    q, k, v = (torch.randn(num_rows, count, head_dim) for count in (num_heads, num_kv_heads, num_kv_heads))
    caches = []
    for _ in range(2):
        torch.manual_seed(1)
        cache = KVCache.empty(32, BLOCK_SIZE, num_kv_heads, head_dim, torch.float32, CPU)
        for content in (cache.keys, cache.values):
            content.normal_()
        caches.append(cache)
    expected = paged_attention(q, k, v, caches[0], build_batch(rows, BLOCK_SIZE, CPU), 0.4, chunk_size)
    batch = kernel_batch(rows, SpanBackend(attend, num_kv_heads, 16), chunk_size)
    computed = paged_attention(q, k, v, caches[1], batch, 0.4, chunk_size)
    assert_equal_but_for_rounding(computed, expected)
    assert torch.equal(caches[0].keys, caches[1].keys)


@pytest.mark.parametrize("chunk_size", [None, 4, 6, 100])
@pytest.mark.parametrize("name", STEPS)
def test_spans_say_what_rows_attend_to(name: str, chunk_size: int | None) -> None:
    assert_equal_one_by_one(emulated_attend, STEPS[name], heads=(6, 2), head_dim=8, chunk_size=chunk_size)


@pytest.mark.parametrize("chunk_size", [None, 6])
@pytest.mark.parametrize("heads", [(4, 4), (6, 2), (5, 1)])
@pytest.mark.parametrize("head_dim", [8, 20])
@pytest.mark.parametrize("name", STEPS)
def test_our_kernel_equals_the_sequences_one_by_one(
    triton_attend: AttendSpans, name: str, heads: tuple[int, int], head_dim: int, chunk_size: int | None
) -> None:
    assert_equal_one_by_one(triton_attend, STEPS[name], heads=heads, head_dim=head_dim, chunk_size=chunk_size)


def test_random_batches() -> None:
    generator = torch.Generator().manual_seed(0)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    for _ in range(30):
        blocks = torch.randperm(32, generator=generator).tolist()
        rows = []
        for _ in range(draw(1, 6)):
            computed, new = draw(0, 12), draw(1, 10)
            own = [blocks.pop() for _ in range(-(-(computed + new) // BLOCK_SIZE))]
            rows.append(SequenceRows(computed, new, own))
        chunk_size = [None, 3, 8][draw(0, 3)]
        assert_equal_one_by_one(emulated_attend, rows, heads=(4, 2), head_dim=8, chunk_size=chunk_size)


def test_few_rows_are_split_over_programs() -> None:
    seen = []

    def record(
        q: Tensor, keys: Tensor, values: Tensor, tables: DeviceTables, scale: float, num_splits: int
    ) -> Tensor:
        seen.append(num_splits)
        return q

    cache = KVCache.empty(1, BLOCK_SIZE, 2, 8, torch.float32, CPU)
    for rows in ([SequenceRows(0, 1, [0])] * 3, [SequenceRows(0, 1, [0])] * 64, [SequenceRows(0, 2, [0])]):
        batch = kernel_batch(rows, SpanBackend(record, 2, 16), None)
        assert batch.kernel is not None
        batch.kernel.attend(torch.zeros(1, 2, 8), cache, 1.0, None)
    assert seen == [4, 1, 1]


class _Wrapper:
    """FlashInfer's, as far as its documentation says: it attends by the pages that it is told of."""

    def __init__(self, workspace: Tensor, layout: str) -> None:
        assert layout == "NHD"

    def plan(self, **told: Any) -> None:
        assert told["causal"]
        assert (
            told["qo_indptr"].dtype == told["paged_kv_indptr"].dtype == told["paged_kv_indices"].dtype == torch.int32
        )
        self.told = told

    def run(self, q: Tensor, cache: tuple[Tensor, Tensor]) -> Tensor:
        told = self.told
        borders = told["paged_kv_indptr"].tolist()
        counts = told["paged_kv_indptr"].diff()
        table = torch.zeros(len(counts), int(counts.max()), dtype=torch.int32)
        for row, start, stop in zip(table, borders[:-1], borders[1:], strict=True):
            row[: stop - start] = told["paged_kv_indices"][start:stop]
        num_keys = (counts - 1) * told["page_size"] + told["paged_kv_last_page_len"]
        longest = int(told["qo_indptr"].diff().max())
        tables = DeviceTables(told["qo_indptr"], torch.zeros_like(num_keys), num_keys, table, longest)
        return emulated_attend(q, *cache, tables, told["sm_scale"], 1)


@pytest.mark.parametrize("chunk_size", [None, 8])
@pytest.mark.parametrize("name", STEPS)
def test_flashinfer_is_told_of_pages(name: str, chunk_size: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_kernels, "_WORKSPACE_BYTES", 1)
    rows = STEPS[name]
    shape = AttentionShape(4, 2, 16, BLOCK_SIZE, (chunk_size,), torch.float32)
    module = SimpleNamespace(BatchPrefillWithPagedKVCacheWrapper=_Wrapper)
    batch = kernel_batch(rows, FlashInferBackend(module, shape, CPU), chunk_size)
    num_rows = sum(row.num_new_tokens for row in rows)
    q, k, v = (torch.randn(num_rows, count, 16) for count in (4, 2, 2))
    cache = KVCache(*(torch.randn(32, BLOCK_SIZE, 2, 16) for _ in range(2)))
    computed = paged_attention(q, k, v, cache, batch, 0.25, chunk_size)
    expected = paged_attention(q, k, v, cache, build_batch(rows, BLOCK_SIZE, CPU), 0.25, chunk_size)
    assert_equal_but_for_rounding(computed, expected)


BF16 = AttentionShape(8, 2, 128, 16, (None,), torch.bfloat16)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (AttentionShape(8, 2, 128, 16, (None,), torch.float32), "not float32"),
        (AttentionShape(8, 2, 80, 16, (None,), torch.bfloat16), "not 80"),
        (AttentionShape(8, 2, 128, 16, (None, 100), torch.bfloat16), "chunks of 100 tokens"),
        (BF16, None),
    ],
)
def test_why_flashinfer_is_not_taken(
    shape: AttentionShape, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    missing = missing_for_flashinfer(shape)
    assert missing is None if words is None else words in (missing or "")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert missing_for_flashinfer(shape) == "FlashInfer is not installed"


def test_a_gpu_without_kernels_goes_through_sequences_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    chosen = choose_backends(BF16, torch.device("cuda"))
    assert chosen.steps is chosen.decoding is None
    assert "with copies of histories (no Triton; FlashInfer is not installed)" in chosen.reason
    assert "no paged kernel on cpu" in choose_backends(BF16, CPU).reason

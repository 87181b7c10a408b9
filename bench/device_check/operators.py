"""Attention on the device against attention on the CPU in float32, which goes through everything one by one."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from bench.device_check.checks import Check, Outcome
from chiasm.engine.runner.steps import HostStep, KernelInputs, PlainInputs, StepInputs
from chiasm.ops.attention import segment_attention
from chiasm.ops.paged_attention import KVCache, PagedBatch, SequenceRows, build_batch, paged_attention
from chiasm.ops.paged_kernels import AttentionShape, PagedBackend, choose_backends
from chiasm.ops.segments import Segments
from chiasm.ops.varlen import choose_segment_kernel

_CPU = torch.device("cpu")
_LIMITS = {torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 3e-2}
_BLOCK_SIZE = 16
_SEGMENTS = {
    "windows": [(64, 0)] * 20 + [(32, 0)] * 3 + [(16, 0), (256, 0), (1, 0)],
    "padding": [(120, 20), (120, 20), (77, 0), (90, 60)],
}
_STEPS = {
    "decoding": [(700, 1), (3, 1), (1500, 1), (0, 1)],
    "prefill with history": [(300, 200), (0, 130), (33, 1)],
}


def operator_checks(device: torch.device) -> Iterator[Check]:
    """Checks of segments and of the paged cache, in every type."""
    for dtype in _LIMITS:
        kind = str(dtype).removeprefix("torch.")
        for head_dim in (64, 72, 80, 20):
            for name in _SEGMENTS:
                label = f"segments, {name}, heads of {head_dim}, {kind}"
                yield label, partial(_check_segments, name, head_dim, dtype, device)
        for head_dim, chunk_size in ((128, None), (64, 48), (64, 1000), (80, None)):
            for name in _STEPS:
                label = f"paged, {name}, heads of {head_dim}, chunks of {chunk_size}, {kind}"
                yield label, partial(_check_paged, name, head_dim, chunk_size, dtype, device)


def _check_segments(name: str, head_dim: int, dtype: torch.dtype, device: torch.device) -> Outcome:
    torch.manual_seed(0)
    segments = Segments.padded(_SEGMENTS[name])
    q, k, v = torch.randn(segments.num_rows, 12, head_dim).to(dtype).split(4, dim=1)
    expected = segment_attention(*(x.float() for x in (q, k, v)), segments, head_dim**-0.5)
    kernel = choose_segment_kernel(device, dtype, head_dim).kernel
    computed = segment_attention(*(x.to(device) for x in (q, k, v)), segments, head_dim**-0.5, kernel)
    return _compared(computed, expected, dtype)


def _check_paged(
    name: str, head_dim: int, chunk_size: int | None, dtype: torch.dtype, device: torch.device
) -> Outcome:
    torch.manual_seed(0)
    free = torch.randperm(400).tolist()
    rows = [
        SequenceRows(past, new, [free.pop() for _ in range(-(-(past + new) // _BLOCK_SIZE))])
        for past, new in _STEPS[name]
    ]
    num_rows = sum(row.num_new_tokens for row in rows)
    q, k, v = (torch.randn(num_rows, heads, head_dim).to(dtype) for heads in (12, 2, 2))
    content = torch.randn(2, 400, _BLOCK_SIZE, 2, head_dim).to(dtype)
    scale = head_dim**-0.5
    expected = paged_attention(
        *(x.float() for x in (q, k, v)),
        KVCache(*content.float()),
        build_batch(rows, _BLOCK_SIZE, _CPU),
        scale,
        chunk_size,
    )
    shape = AttentionShape(12, 2, head_dim, _BLOCK_SIZE, (chunk_size,), dtype)
    backends = choose_backends(shape, device)
    outcomes = []
    for backend in dict.fromkeys((backends.steps, backends.decoding)):
        batch = _batch(rows, backend, shape, device)
        computed = paged_attention(
            *(x.to(device) for x in (q, k, v)), KVCache(*content.to(device)), batch, scale, chunk_size
        )
        outcomes.append(_compared(computed, expected, dtype))
    return Outcome(all(one.is_good for one in outcomes), "; ".join(one.detail for one in outcomes))


def _batch(
    rows: list[SequenceRows], backend: PagedBackend | None, shape: AttentionShape, device: torch.device
) -> PagedBatch:
    inputs: StepInputs = PlainInputs(_BLOCK_SIZE, device)
    if backend is not None:
        inputs = KernelInputs(backend, shape, device)
    num_rows = sum(row.num_new_tokens for row in rows)
    empty = torch.zeros(num_rows, dtype=torch.int64).numpy()
    return inputs.make(HostStep(empty, empty[None], empty[:0], rows)).batch


def _compared(computed: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> Outcome:
    difference = float((computed.float().cpu() - expected).abs().max())
    limit = _LIMITS[dtype]
    return Outcome(difference <= limit, f"largest difference {difference:.1e}, at most {limit:.0e}")

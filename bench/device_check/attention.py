"""Attention on the device against the definition of it, in float64 on the CPU."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from bench.device_check.probe import Outcome, Probe
from chiasm.engine.runner.steps import HostStep, KernelInputs, PlainInputs, StepInputs
from chiasm.ops.attention import segment_attention
from chiasm.ops.paged_attention import KVCache, PagedBatch, SequenceRows, paged_attention
from chiasm.ops.paged_kernels import AttentionShape, PagedBackend, choose_backends
from chiasm.ops.segments import Segments
from chiasm.ops.varlen import choose_segment_kernel

_LIMITS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
"""Of the largest value of a row: outputs are rounded, and so are the shares of what is mixed."""
_BLOCK_SIZE, _NUM_BLOCKS = 16, 600
_SEGMENTS = {
    "windows": [(64, 0)] * 20 + [(32, 0)] * 3 + [(16, 0), (256, 0), (1, 0)],
    "padding": [(120, 20), (120, 20), (77, 0), (90, 60)],
    "a large image": [(1600, 0), (36, 0)],
}
_TOWER_HEADS = {
    torch.bfloat16: (64, 72, 80, 88, 128, 20),  # 20 is none of a published model: it has to be filled up
    torch.float16: (72,),
    torch.float32: (72, 128),
}


class Decoder(NamedTuple):
    """Attention of a language model.

    Attributes:
        num_heads: for one key-value head.
        head_dim: size of a head.
        chunk_size: within which tokens see each other; None for all.
    """

    num_heads: int
    head_dim: int
    chunk_size: int | None = None


_DECODERS = {
    torch.bfloat16: (Decoder(4, 128), Decoder(7, 128), Decoder(12, 128), Decoder(5, 128, 96), Decoder(6, 80)),
    torch.float16: (Decoder(4, 128),),
    torch.float32: (Decoder(4, 128), Decoder(5, 128, 96), Decoder(6, 80)),
}
"""Of each type: each kernel that differs takes a second to compile."""
_STEPS = {
    "decoding": [(3000, 1), (3, 1), (1500, 1), (0, 1)],
    "a few sequences": [(700, 1)] * 3,
    "prefill with history": [(900, 300), (0, 130), (33, 1)],
}
_MANY = {f"{count} sequences": [(50 + index, 1) for index in range(count)] for count in (10, 20, 40, 70)}
"""The more sequences, the fewer programs share the keys of each: on 132 processors 8, 4, 2 and 1."""
_NUM_KV_HEADS = 2


def check_attention(probe: Probe) -> None:
    """Segments of towers, and the paged cache, in every type."""
    for dtype, head_dims in _TOWER_HEADS.items():
        kind = str(dtype).removeprefix("torch.")
        for head_dim in head_dims:
            for name in _SEGMENTS:
                call = partial(check_segments, name, head_dim, dtype, probe.device)
                probe.check(f"segments, {name}, heads of {head_dim}, {kind}", call)
    for dtype, decoders in _DECODERS.items():
        kind = str(dtype).removeprefix("torch.")
        for decoder in decoders:
            for name in _STEPS | (_MANY if decoder == decoders[0] else {}):
                words = f"{decoder.num_heads} heads of {decoder.head_dim} a key-value head"
                chunks = "" if decoder.chunk_size is None else f", chunks of {decoder.chunk_size}"
                call = partial(check_paged, name, decoder, dtype, probe.device)
                probe.check(f"paged, {name}, {words}{chunks}, {kind}", call)


def check_segments(name: str, head_dim: int, dtype: torch.dtype, device: torch.device) -> Outcome:
    """Rows attend within their segments; padding to the rest of its own."""
    torch.manual_seed(0)
    lengths = _SEGMENTS[name]
    segments = Segments.padded(lengths)
    q, k, v = torch.randn(segments.num_rows, 12, head_dim).to(dtype).split(4, dim=1)
    kernel = choose_segment_kernel(device, dtype, head_dim).kernel
    computed = segment_attention(*(x.to(device) for x in (q, k, v)), segments, head_dim**-0.5, kernel)
    parts = []
    for own_q, own_k, own_v, (length, num_padding) in zip(
        *(x.split([length for length, _ in lengths]) for x in (q, k, v)), lengths, strict=True
    ):
        is_padding = torch.arange(length) >= length - num_padding
        parts.append(attended(own_q, own_k, own_v, ~(is_padding[:, None] & is_padding[None, :])))
    return _compared(computed, torch.cat(parts), dtype)


def check_paged(name: str, decoder: Decoder, dtype: torch.dtype, device: torch.device) -> Outcome:
    """New tokens attend to what is in the blocks of their sequence, and to those of the new ones that come before."""
    torch.manual_seed(0)
    num_heads, head_dim, chunk_size = decoder.num_heads * _NUM_KV_HEADS, decoder.head_dim, decoder.chunk_size
    free = torch.randperm(_NUM_BLOCKS).tolist()
    rows = [
        SequenceRows(past, new, [free.pop() for _ in range(-(-(past + new) // _BLOCK_SIZE))])
        for past, new in (_STEPS | _MANY)[name]
    ]
    sizes = [row.num_new_tokens for row in rows]
    q, k, v = (torch.randn(sum(sizes), heads, head_dim).to(dtype) for heads in (num_heads, *[_NUM_KV_HEADS] * 2))
    content = torch.randn(2, _NUM_BLOCKS, _BLOCK_SIZE, _NUM_KV_HEADS, head_dim).to(dtype)
    expected = torch.cat(
        [
            _attended_by_sequence(row, own, content, chunk_size)
            for row, own in zip(rows, zip(*(x.split(sizes) for x in (q, k, v)), strict=True), strict=True)
        ]
    )
    shape = AttentionShape(num_heads, _NUM_KV_HEADS, head_dim, _BLOCK_SIZE, (chunk_size,), dtype)
    backends = choose_backends(shape, device)
    outcomes = []
    for backend in dict.fromkeys((backends.steps, backends.decoding)):
        batch = _batch(rows, backend, shape, device)
        cache = KVCache(*content.to(device))
        computed = paged_attention(*(x.to(device) for x in (q, k, v)), cache, batch, head_dim**-0.5, chunk_size)
        outcomes.append(_compared(computed, expected, dtype))
    return Outcome(all(one.is_good for one in outcomes), "; ".join(one.detail for one in outcomes))


def _attended_by_sequence(
    row: SequenceRows, new: tuple[Tensor, Tensor, Tensor], content: Tensor, chunk_size: int | None
) -> Tensor:
    past = row.num_computed_tokens
    q, *news = new
    kept = [of[row.block_ids].flatten(0, 1)[:past] for of in content]
    group = q.shape[1] // _NUM_KV_HEADS
    keys, values = (torch.cat(pair).repeat_interleave(group, 1) for pair in zip(kept, news, strict=True))
    places = torch.arange(len(keys))
    is_seen = places[None, :] <= places[past:, None]
    if chunk_size is not None:
        is_seen &= places[None, :] // chunk_size == places[past:, None] // chunk_size
    return attended(q, keys, values, is_seen)


def attended(q: Tensor, k: Tensor, v: Tensor, is_seen: Tensor) -> Tensor:
    """Softmax of scaled scores, times the values, in float64: [n, H, D] from [m, H, D] and a mask [n, m]."""
    q, k, v = (x.double() for x in (q, k, v))
    scores = torch.einsum("nhd,mhd->hnm", q, k) * q.shape[2] ** -0.5
    shares = scores.masked_fill(~is_seen, -torch.inf).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", shares, v)


def _batch(
    rows: list[SequenceRows], backend: PagedBackend | None, shape: AttentionShape, device: torch.device
) -> PagedBatch:
    inputs: StepInputs = PlainInputs(_BLOCK_SIZE, device)
    if backend is not None:
        inputs = KernelInputs(backend, shape, device)
    num_rows = sum(row.num_new_tokens for row in rows)
    empty = torch.zeros(num_rows, dtype=torch.int64).numpy()
    return inputs.make(HostStep(empty, empty[None], empty[:0], rows)).batch


def _compared(computed: Tensor, expected: Tensor, dtype: torch.dtype) -> Outcome:
    size = expected.abs().amax(-1, keepdim=True)
    difference = float(((computed.double().cpu() - expected).abs() / size).max())
    limit = _LIMITS[dtype]
    return Outcome(
        difference <= limit, f"largest difference {difference:.1e} of a row's largest, at most {limit:.0e}"
    )

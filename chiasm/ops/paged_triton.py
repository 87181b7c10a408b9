"""The kernel of paged attention on a GPU: rows of spans over keys and values in blocks, none of which is copied.

It is FlashAttention's recurrence (arXiv:2205.14135) over keys that are looked up by block; where a batch has few rows
the keys of each are split over programs whose results are joined by their weights (Flash-Decoding). Imported only
where there is a GPU, and by its tests, since Triton comes with torch's CUDA builds only.

Shapes: n rows, S spans, H query heads, Hkv key-value heads, G = H / Hkv, D head size.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from chiasm.ops.paged_kernels import DeviceTables

_MIN_TILE = 16  # the least that a product of tiles takes
_PREFILL_ROWS, _DECODE_ROWS = 64, 16


@triton.jit  # type: ignore[untyped-decorator]
def _attend_kernel(  # type: ignore[no-untyped-def]
    q, keys, values, out, weights,
    first_rows, first_keys, num_keys, block_table,
    scale,
    table_stride, q_row_stride, q_head_stride,
    block_stride, token_stride, head_stride,
    out_split_stride, out_row_stride, weight_split_stride, weight_row_stride,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr, TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_D: tl.constexpr,
    NUM_SPLITS: tl.constexpr,
):  # fmt: skip
    """TILE_ROWS rows of a span, in all query heads of one key-value head, over one split of the keys.

    Strides are in elements; the last dimensions are dense. ``weights`` is the logarithm of the sum of exponentials.
    """
    tile, span = tl.program_id(0), tl.program_id(1)
    kv_head, split = tl.program_id(2) // NUM_SPLITS, tl.program_id(2) % NUM_SPLITS
    first_row = tl.load(first_rows + span)
    num_rows = tl.load(first_rows + span + 1) - first_row
    if tile * TILE_ROWS >= num_rows:
        return
    total, low = tl.load(num_keys + span), tl.load(first_keys + span)
    m, d = tl.arange(0, TILE_M), tl.arange(0, TILE_D)
    row, head = tile * TILE_ROWS + m // GROUP, kv_head * GROUP + m % GROUP
    is_row = (m < TILE_ROWS * GROUP) & (row < num_rows)
    is_dim = d < HEAD_DIM
    row_places = (first_row + row).to(tl.int64)
    q_places = row_places * q_row_stride + head * q_head_stride
    queries = tl.load(q + q_places[:, None] + d[None, :], mask=is_row[:, None] & is_dim[None, :], other=0.0)
    last_key = total - num_rows + row
    high = tl.minimum(total, total - num_rows + (tile + 1) * TILE_ROWS)
    share = tl.cdiv(tl.cdiv(high - low, TILE_N), NUM_SPLITS) * TILE_N
    begin = low + split * share
    end = tl.minimum(high, begin + share)
    highest = tl.full((TILE_M,), float("-inf"), tl.float32)
    norm = tl.zeros((TILE_M,), tl.float32)
    mixed = tl.zeros((TILE_M, TILE_D), tl.float32)
    for start in range(begin, end, TILE_N):
        key = start + tl.arange(0, TILE_N)
        is_key = key < end
        block = tl.load(block_table + span * table_stride + key // BLOCK_SIZE, mask=is_key, other=0).to(tl.int64)
        places = block * block_stride + (key % BLOCK_SIZE) * token_stride + kv_head * head_stride
        own_keys = tl.load(keys + places[None, :] + d[:, None], mask=is_key[None, :] & is_dim[:, None], other=0.0)
        scores = tl.dot(queries, own_keys, input_precision="ieee") * scale
        scores = tl.where(is_key[None, :] & (key[None, :] <= last_key[:, None]), scores, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        shift = tl.where(new_highest == float("-inf"), 0.0, new_highest)
        shares = tl.exp(scores - shift[:, None])
        kept = tl.exp(highest - shift)
        own_values = tl.load(values + places[:, None] + d[None, :], mask=is_key[:, None] & is_dim[None, :], other=0.0)
        mixed = mixed * kept[:, None] + tl.dot(shares.to(own_values.dtype), own_values, input_precision="ieee")
        norm = norm * kept + tl.sum(shares, 1)
        highest = new_highest
    mixed = mixed / tl.where(norm == 0.0, 1.0, norm)[:, None]
    out_places = split * out_split_stride + row_places * out_row_stride + head * HEAD_DIM
    tl.store(
        out + out_places[:, None] + d[None, :],
        mixed.to(out.dtype.element_ty),
        mask=is_row[:, None] & is_dim[None, :],
    )
    if NUM_SPLITS > 1:
        weight_places = split * weight_split_stride + row_places * weight_row_stride + head
        tl.store(weights + weight_places, highest + tl.log(tl.where(norm == 0.0, 1.0, norm)), mask=is_row)


def attend_spans(
    q: Tensor, keys: Tensor, values: Tensor, tables: DeviceTables, scale: float, num_splits: int
) -> Tensor:
    """Let each row attend to what its span says.

    Args:
        q: [n, H, D].
        keys: [num_blocks, block_size, Hkv, D], dense, as ``values``.
        values: likewise.
        tables: of the n rows.
        scale: factor of the scores.
        num_splits: programs that share the keys of a row.

    Returns:
        [n, H, D].
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads, group = keys.shape[2], num_heads // keys.shape[2]
    tile_m = max(_MIN_TILE, triton.next_power_of_2(group), _DECODE_ROWS if tables.max_rows == 1 else _PREFILL_ROWS)
    tile_rows = tile_m // group
    tile_d = max(_MIN_TILE, triton.next_power_of_2(head_dim))
    is_split = num_splits > 1
    out = q.new_empty(num_splits, num_rows, num_heads, head_dim, dtype=torch.float32 if is_split else q.dtype)
    weights = q.new_empty(num_splits, num_rows, num_heads, dtype=torch.float32)
    num_spans = len(tables.num_keys)
    grid = (triton.cdiv(tables.max_rows, tile_rows), num_spans, num_kv_heads * num_splits)
    _attend_kernel[grid](
        q, keys, values, out, weights,
        tables.first_rows, tables.first_keys, tables.num_keys, tables.block_table,
        scale,
        tables.block_table.stride(0), q.stride(0), q.stride(1),
        keys.stride(0), keys.stride(1), keys.stride(2),
        out.stride(0), out.stride(1), weights.stride(0), weights.stride(1),
        GROUP=group, HEAD_DIM=head_dim, BLOCK_SIZE=keys.shape[1],
        TILE_ROWS=tile_rows, TILE_M=tile_m, TILE_N=64 if tile_d * q.itemsize <= 256 else 32, TILE_D=tile_d,
        NUM_SPLITS=num_splits,
    )  # fmt: skip
    if not is_split:
        return out[0]
    joined = (out * weights.softmax(0)[..., None]).sum(0)
    return joined.to(q.dtype)

"""Attention of the vision towers: over segments of a packed batch, in both directions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chiasm.ops.segments import Segments
from chiasm.ops.varlen import RUN_BY_RUN, SegmentKernel, attend_padded


def segment_attention(
    q: Tensor, k: Tensor, v: Tensor, segments: Segments, scale: float, kernel: SegmentKernel = RUN_BY_RUN
) -> Tensor:
    """Attend within each segment; no masks, and no copies of q, k and v.

    Where segments are cut, their rows are on their way to and from other ranks while the whole ones are computed.

    Args:
        q: [n, H, D], as are ``k`` and ``v``.
        k: keys.
        v: values.
        segments: covers the n rows.
        scale: factor of the scores.
        kernel: what whole segments attend with.

    Returns:
        [n, H, D].
    """
    assert segments.num_rows == q.shape[0]
    if segments.placed is not None:
        return segments.placed.attend(q, k, v, scale)
    shared = segments.shared
    pending = None
    if shared is not None:
        pending = shared.begin(*(rows[: shared.num_rows] for rows in (q, k, v)))
    outputs = [kernel.attend(q, k, v, segments.runs, scale)] if segments.runs else []
    if pending is not None:
        outputs.insert(0, pending.finish(scale))
    if not outputs:  # a rank without rows, which takes part in a layer all the same
        return q
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def attend_unit(q: Tensor, k: Tensor, v: Tensor, scale: float, *, first_row: int = 0, num_padding: int = 0) -> Tensor:
    """Queries of neighbouring rows of a segment over all of it.

    Args:
        q: [m, H, D].
        k: [n, H, D], keys of the whole segment.
        v: its values, likewise.
        scale: factor of the scores.
        first_row: where in the segment the queries begin.
        num_padding: see ``Run``.

    Returns:
        [m, H, D].
    """
    num_core = k.shape[0] - num_padding
    q, k, v = (rows.transpose(0, 1)[None] for rows in (q, k, v))
    return attend_padded(q, k, v, num_core, first_row, scale)[0].transpose(0, 1)


def attend_memory(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Every query over all keys and values, each of which several query heads share.

    Args:
        q: [m, H, D]; H is a multiple of Hkv and query head h reads key-value head h // (H / Hkv).
        k: [n, Hkv, D].
        v: [n, Hkv, D].
        scale: factor of the scores.

    Returns:
        [m, H, D].
    """
    num_rows, num_heads, head_dim = q.shape
    num_kv_heads = k.shape[1]
    # The query heads of a group become rows over their one key-value head.
    grouped = q.view(num_rows, num_kv_heads, -1, head_dim).transpose(0, 1).reshape(1, num_kv_heads, -1, head_dim)
    keys, values = k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    out = F.scaled_dot_product_attention(grouped, keys, values, scale=scale)[0]
    return out.view(num_kv_heads, num_rows, -1, head_dim).transpose(0, 1).reshape(num_rows, num_heads, head_dim)

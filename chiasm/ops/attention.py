"""Attention of the vision towers: over segments of a packed batch, in both directions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chiasm.ops.segments import Run, Segments


def segment_attention(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scale: float) -> Tensor:
    """Attend within each segment; no masks, and no copies of q, k and v.

    Where segments are cut, their rows are on their way to and from other ranks while the whole ones are computed.

    Args:
        q: [n, H, D], as are ``k`` and ``v``.
        k: keys.
        v: values.
        segments: covers the n rows.
        scale: factor of the scores.

    Returns:
        [n, H, D].
    """
    assert segments.num_rows == q.shape[0]
    shared = segments.shared
    pending = None
    if shared is not None:
        pending = shared.begin(*(rows[: shared.num_rows] for rows in (q, k, v)))
    outputs = [_attend_run(q, k, v, run, scale) for run in segments.runs]
    if pending is not None:
        outputs.insert(0, pending.finish(scale))
    if not outputs:  # a rank without rows, which takes part in a layer all the same
        return q
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_run(q: Tensor, k: Tensor, v: Tensor, run: Run, scale: float) -> Tensor:
    # [n, H, D] -> [count, H, length, D], all views
    shape = (run.count, run.length, *q.shape[1:])
    q, k, v = (rows[run.start : run.stop].view(shape).transpose(1, 2) for rows in (q, k, v))
    return _attend_padded(q, k, v, run.length - run.num_padding, 0, scale).transpose(1, 2).flatten(0, 1)


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
    return _attend_padded(q, k, v, num_core, first_row, scale)[0].transpose(0, 1)


def _attend_padded(q: Tensor, k: Tensor, v: Tensor, num_core: int, first_row: int, scale: float) -> Tensor:
    """[count, H, m, D], rows of segments from ``first_row`` on, whose padding begins at row ``num_core``."""
    num_seeing = min(max(num_core - first_row, 0), q.shape[2])  # all rows
    outputs = []
    if num_seeing:
        outputs.append(F.scaled_dot_product_attention(q[:, :, :num_seeing], k, v, scale=scale))
    if num_seeing < q.shape[2]:
        core = slice(0, num_core)
        outputs.append(
            F.scaled_dot_product_attention(q[:, :, num_seeing:], k[:, :, core], v[:, :, core], scale=scale)
        )
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2)


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

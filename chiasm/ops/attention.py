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
    return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(0, 1)


def attend_all(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """[m, H, D] queries over all of [n, H, D] keys and values -> [m, H, D]."""
    q, k, v = (rows.transpose(0, 1) for rows in (q, k, v))
    return F.scaled_dot_product_attention(q[None], k[None], v[None], scale=scale)[0].transpose(0, 1)

"""Attention of the vision towers: over segments of a packed batch, in both directions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from chiasm.ops.segments import Run, Segments


def segment_attention(q: Tensor, k: Tensor, v: Tensor, segments: Segments, scale: float) -> Tensor:
    """Attend within each segment; no masks, and no copies of q, k and v.

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
    outputs = [_attend_run(q, k, v, run, scale) for run in segments.runs]
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def _attend_run(q: Tensor, k: Tensor, v: Tensor, run: Run, scale: float) -> Tensor:
    # [n, H, D] -> [count, H, length, D], all views
    shape = (run.count, run.length, *q.shape[1:])
    q, k, v = (rows[run.start : run.stop].view(shape).transpose(1, 2) for rows in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2).flatten(0, 1)

"""Normalisation."""

from __future__ import annotations

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor | None, eps: float) -> Tensor:
    """Scale rows to a root mean square of one, then by ``weight`` if there is one.

    The mean is taken in float32 at least, and the result rounded before it is weighted, as the families were trained.

    Args:
        x: [..., d].
        weight: [d].
        eps: added to the mean square.
    """
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    normed = (wide * scale).to(x.dtype)
    return normed if weight is None else normed.mul_(weight)

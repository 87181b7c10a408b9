"""Keeping answers to the tokens that their forms allow.

Shapes: B rows of logits, V the size of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor


def forbid_others(logits: Tensor, allowed: Mapping[int, bytes]) -> None:
    """Set to minus infinity, in place, what rows may not be.

    Args:
        logits: [B, V].
        allowed: by row, a bit for each token, the lowest of a byte first; V bits or more.
    """
    for row, mask in allowed.items():
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little", count=logits.shape[1])
        is_forbidden = torch.from_numpy(bits == 0).to(logits.device)
        logits[row].masked_fill_(is_forbidden, -torch.inf)

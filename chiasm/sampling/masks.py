"""Keeping answers to the tokens that they may have.

Shapes: B rows of logits, V the size of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from chiasm.sampling.places import Places
from chiasm.sampling.rows import SamplingRow


def mask_of(token_ids: Sequence[int]) -> bytes:
    """A bit for each token up to the largest of these, the lowest of a byte first; theirs are set."""
    bits = np.zeros(max(token_ids) + 1, np.uint8)
    bits[list(token_ids)] = 1
    return np.packbits(bits, bitorder="little").tobytes()


def forbid_others(logits: Tensor, allowed: Mapping[int, bytes]) -> None:
    """Set to minus infinity, in place, what rows may not be.

    Args:
        logits: [B, V].
        allowed: by row, a bit for each token, the lowest of a byte first; tokens beyond the last bit are not allowed.
    """
    for row, mask in allowed.items():
        bits = np.unpackbits(np.frombuffer(mask, np.uint8), bitorder="little", count=logits.shape[1])
        is_forbidden = torch.from_numpy(bits == 0).to(logits.device)
        logits[row].masked_fill_(is_forbidden, -torch.inf)


def forbid_banned(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Set to minus infinity, in place, what would complete a banned sequence; [B, V] and B descriptions."""
    ends = Places()
    for index, row in enumerate(rows):
        for token in _completions(row) if row.banned else ():
            ends.add(index, token, -torch.inf)
    if ends:
        logits[ends.index(logits)] = ends.numbers(logits)


def _completions(row: SamplingRow) -> set[int]:
    """Last tokens of the banned sequences whose others the answer ends with."""
    num_tokens = len(row.token_ids)
    return {
        banned[-1]
        for banned in row.banned
        if len(banned) <= row.num_output_tokens + 1
        and tuple(row.token_ids[num_tokens + 1 - len(banned) :]) == tuple(banned[:-1])
    }


def stuck_rows(logits: Tensor, rows: Sequence[int]) -> list[int]:
    """Those of some rows of [B, V] in which every token is excluded."""
    if not rows:
        return []
    highest = torch.stack([logits[row].amax() for row in rows])
    return [row for row, is_stuck in zip(rows, torch.isneginf(highest).tolist(), strict=True) if is_stuck]

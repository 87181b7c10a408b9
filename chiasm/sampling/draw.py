"""Drawing tokens from distributions, repeatably.

A draw needs one number in [0, 1) per token. It comes from a hash of the sequence's seed and the token's index, so
the same seed gives the same answer whatever else is in the batch, on however many ranks, and after a preemption.

Shapes: B is sequences, V the size of the vocabulary.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from chiasm.schema.sampling import SamplingParams


def uniform(seed: int, index: int) -> float:
    """A number in [0, 1), with 53 random bits, that depends on both arguments only."""
    digest = hashlib.blake2b(struct.pack("<qq", seed, index), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 11) / float(1 << 53)


def draw(logits: Tensor, params: Sequence[SamplingParams], uniforms: Sequence[float]) -> Tensor:
    """Sample one token per row by inverting the cumulative distribution.

    Args:
        logits: [B, V], float32.
        params: of each row; none is greedy.
        uniforms: of each row, in [0, 1).

    Returns:
        Token ids [B].
    """
    device = logits.device
    temperatures = torch.tensor([p.temperature for p in params], device=device)
    scaled = logits / temperatures[:, None]
    scaled = _truncate(scaled, params)
    # float64: over 150,000 entries a float32 running sum would drift by more than the rare tokens weigh.
    cumulative = torch.softmax(scaled, dim=-1, dtype=torch.float64).cumsum(dim=-1)
    targets = torch.tensor(uniforms, device=device, dtype=torch.float64) * cumulative[:, -1]
    # right=True skips tokens of probability zero, whose cumulative value equals their predecessor's.
    return torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)


def _truncate(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Set logits outside top-k, top-p and min-p to minus infinity; [B, V] to [B, V]."""
    vocab_size = scaled.shape[-1]
    device = scaled.device
    if any(p.top_k > 0 or p.top_p < 1 for p in params):
        ordered, order = scaled.sort(dim=-1, descending=True)
        ks = torch.tensor([p.top_k if p.top_k > 0 else vocab_size for p in params], device=device)
        is_cut = torch.arange(vocab_size, device=device) >= ks[:, None]
        # As elsewhere, top-p works on what top-k left. A token stays if those before it have not reached p yet.
        probs = ordered.masked_fill(is_cut, -torch.inf).softmax(dim=-1)
        top_ps = torch.tensor([p.top_p for p in params], device=device)
        is_cut |= (probs.cumsum(dim=-1) - probs) >= top_ps[:, None]
        is_cut[:, 0] = False
        scaled = scaled.masked_fill(is_cut.scatter(-1, order, is_cut), -torch.inf)
    if any(p.min_p > 0 for p in params):
        min_ps = torch.tensor([p.min_p for p in params], device=device)
        probs = scaled.softmax(dim=-1)
        scaled = scaled.masked_fill(probs < min_ps[:, None] * probs.amax(dim=-1, keepdim=True), -torch.inf)
    return scaled

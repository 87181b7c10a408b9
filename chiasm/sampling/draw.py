"""Drawing tokens from distributions, repeatably.

A draw needs one number in [0, 1) per token. It comes from a hash of the sequence's seed and the token's index, so
the same seed gives the same answer whatever else is in the batch, on however many ranks, and after a preemption.

Shapes: B is sequences, T those of them that cut their distribution, V the size of the vocabulary, K a number of
likeliest tokens.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from chiasm.schema.sampling import SamplingParams

# Most distributions reach top_p within this many tokens, and finding those is much faster than sorting them all.
_FEW = 1024


class Kept(NamedTuple):
    """How much of each distribution stays.

    Attributes:
        counts: tokens that stay, [T, 1].
        lowest: the logit of the last of them, [T, 1].
        is_enough: whether the tokens looked at were enough to tell, [T].
    """

    counts: Tensor
    lowest: Tensor
    is_enough: Tensor


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
    # float64: over 150,000 entries a float32 running sum would drift by more than the rare tokens weigh.
    cumulative = probabilities(logits, params).cumsum(dim=-1)
    targets = torch.tensor(uniforms, device=logits.device, dtype=torch.float64) * cumulative[:, -1]
    # right=True skips tokens of probability zero, whose cumulative value equals their predecessor's.
    token_ids = torch.searchsorted(cumulative, targets[:, None], right=True)[:, 0]
    return token_ids.clamp_(max=logits.shape[-1] - 1)  # only NaN logits lead beyond, and must not take others along


def probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The distributions that rows are drawn from: float64 [B, V], from float32 [B, V].

    A row depends on its own logits and parameters only, to the last bit.
    """
    temperatures = _column([p.temperature for p in params], logits)
    scaled = logits / temperatures
    cut_rows = [i for i, p in enumerate(params) if p.top_k > 0 or p.top_p < 1]
    if cut_rows:
        scaled[cut_rows] = _cut(scaled[cut_rows], [params[i] for i in cut_rows])
    # Relative to the likeliest token, so that it does not matter what has been cut before. log(0) keeps all.
    lowest = scaled.amax(dim=-1, keepdim=True) + _column([p.min_p for p in params], logits).log()
    return scaled.masked_fill(scaled < lowest, -torch.inf).softmax(dim=-1, dtype=torch.float64)


def _cut(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Set logits outside top-k and top-p to minus infinity; [T, V] to [T, V]."""
    vocab_size = scaled.shape[-1]
    kept = _kept(scaled, scaled.topk(min(_FEW, vocab_size)).values, params)
    if not bool(kept.is_enough.all()):
        kept = _kept(scaled, scaled.sort(dim=-1, descending=True).values, params)
    # Of tokens that tie for the last place, those with the lower ids stay: exactly so many as asked for.
    is_tied = scaled == kept.lowest
    is_above = scaled > kept.lowest
    num_tied = kept.counts - is_above.sum(dim=-1, keepdim=True)
    return scaled.masked_fill(~(is_above | (is_tied & (is_tied.cumsum(dim=-1) <= num_tied))), -torch.inf)


def _kept(scaled: Tensor, largest: Tensor, params: Sequence[SamplingParams]) -> Kept:
    """What stays of distributions [T, V] whose largest entries, in order, are [T, K].

    As elsewhere, top-p works on what top-k left. A token stays if those before it have not reached p yet.
    """
    vocab_size, num_largest = scaled.shape[-1], largest.shape[-1]
    ks = _column([min(p.top_k, vocab_size) if p.top_k > 0 else vocab_size for p in params], scaled)
    top_ps = _column([p.top_p if p.top_p < 1 else torch.inf for p in params], scaled, torch.float64)
    highest = largest[:, :1].to(torch.float64)
    weights = (largest - highest).exp()
    cumulative = weights.masked_fill(torch.arange(num_largest, device=scaled.device) >= ks, 0).cumsum(dim=-1)
    everything = (scaled - highest).exp().sum(dim=-1, keepdim=True)
    total = torch.where(ks < vocab_size, cumulative[:, -1:], everything)
    num_before = (cumulative < top_ps * total).sum(dim=-1, keepdim=True)
    counts = torch.minimum(num_before + 1, ks)
    is_enough = (counts <= num_largest) & ((ks <= num_largest) | (ks == vocab_size))
    return Kept(counts, largest.gather(-1, counts.clamp(max=num_largest) - 1), is_enough[:, 0])


def _column(values: Sequence[float], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """One value per row, [B, 1]."""
    return torch.tensor(values, device=like.device, dtype=dtype)[:, None]

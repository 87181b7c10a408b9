"""Reports of log-probabilities.

Shapes: B rows of logits, V the size of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chiasm.schema.plan import TokenLogprob


def report(logprobs: Tensor, token_ids: Sequence[int], nums_top: Sequence[int]) -> list[TokenLogprob]:
    """The places of tokens among all that could have come.

    Args:
        logprobs: [B, V].
        token_ids: one for each row. A placeholder may be beyond the vocabulary: no answer can have it, so its
            log-probability is minus infinity.
        nums_top: how many of the likeliest tokens each row reports.
    """
    vocab_size = logprobs.shape[1]
    ids = torch.tensor(token_ids, device=logprobs.device)[:, None]
    own = logprobs.gather(1, ids.clamp(max=vocab_size - 1)).masked_fill_(ids >= vocab_size, -torch.inf)
    # Into floats, which are exact so far: summing what is true or false takes ten times as long on a CPU.
    ranks = 1 + torch.gt(logprobs, own, out=torch.empty_like(logprobs)).sum(dim=1)
    values, likeliest = logprobs.topk(min(max(nums_top), vocab_size), dim=1)
    lines = zip(own[:, 0].tolist(), ranks.int().tolist(), likeliest.tolist(), values.tolist(), nums_top, strict=True)
    return [
        TokenLogprob(logprob, rank, tuple(zip(ids[:num_top], values[:num_top], strict=True)))
        for logprob, rank, ids, values, num_top in lines
    ]

"""One step's sampling for the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from chiasm.sampling.draw import draw, uniform
from chiasm.sampling.masks import forbid_others
from chiasm.sampling.penalties import apply_penalties, forbid_stop_tokens
from chiasm.sampling.rows import SamplingRow
from chiasm.schema.plan import SampledToken, TokenLogprob


def sample(
    logits: Tensor,
    rows: Sequence[SamplingRow],
    eos_token_ids: Sequence[int],
    allowed: Mapping[int, bytes] = MappingProxyType({}),
) -> list[SampledToken]:
    """Sample a token for each row.

    Args:
        logits: [B, V], float32; may be changed.
        rows: B descriptions.
        eos_token_ids: the model's end-of-sequence tokens.
        allowed: see ``forbid_others``.

    Returns:
        B tokens. Log-probabilities are those of the model itself, before penalties, temperature and truncation.
    """
    wants_logprobs = [i for i, row in enumerate(rows) if row.params.logprobs is not None]
    raw = logits[wants_logprobs].log_softmax(dim=-1) if wants_logprobs else None
    apply_penalties(logits, rows)
    forbid_stop_tokens(logits, rows, eos_token_ids)
    forbid_others(logits, allowed)
    token_ids = _choose(logits, rows)
    reports: dict[int, TokenLogprob] = {}
    if raw is not None:
        for line, index in zip(raw, wants_logprobs, strict=True):
            reports[index] = _report(line, token_ids[index], rows[index].params.logprobs or 0)
    return [
        SampledToken(row.request_id, token_id, reports.get(index))
        for index, (row, token_id) in enumerate(zip(rows, token_ids, strict=True))
    ]


def _choose(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    token_ids = logits.argmax(dim=-1)
    drawn = [i for i, row in enumerate(rows) if not row.params.is_greedy]
    if drawn:
        numbers = [uniform(rows[i].params.seed or 0, rows[i].num_output_tokens) for i in drawn]
        token_ids[drawn] = draw(logits[drawn], [rows[i].params for i in drawn], numbers)
    chosen: list[int] = token_ids.tolist()
    return chosen


def _report(logprobs: Tensor, token_id: int, num_top: int) -> TokenLogprob:
    """The sampled token's place in one line of log-probabilities, [V]."""
    own = logprobs[token_id]
    values, ids = torch.topk(logprobs, min(num_top, len(logprobs)))
    top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprob(float(own), int((logprobs > own).sum()) + 1, top)

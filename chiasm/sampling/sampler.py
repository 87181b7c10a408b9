"""One step's sampling for the whole batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

from chiasm.sampling.draw import draw, uniform
from chiasm.sampling.logprobs import report
from chiasm.sampling.masks import forbid_banned, forbid_others, stuck_rows
from chiasm.sampling.penalties import apply_biases, apply_penalties, forbid_stop_tokens
from chiasm.sampling.rows import SamplingRow
from chiasm.schema.plan import SampledToken


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
    apply_biases(logits, rows)
    apply_penalties(logits, rows)
    stuck = _exclude(logits, rows, eos_token_ids, allowed)
    token_ids = _choose(logits, rows)
    reports = {}
    if raw is not None:
        own = [(token_ids[i], rows[i].params.logprobs or 0) for i in wants_logprobs]
        reports = dict(zip(wants_logprobs, report(raw, *zip(*own, strict=True)), strict=True))
    return [
        SampledToken(row.request_id, token_id, reports.get(index), is_stuck=index in stuck)
        for index, (row, token_id) in enumerate(zip(rows, token_ids, strict=True))
    ]


def _exclude(
    logits: Tensor, rows: Sequence[SamplingRow], eos_token_ids: Sequence[int], allowed: Mapping[int, bytes]
) -> list[int]:
    """Exclude in place all that rows may not be; returns those for which nothing is left."""
    forbid_stop_tokens(logits, rows, eos_token_ids)
    forbid_others(logits, allowed)
    forbid_others(logits, {i: row.allowed for i, row in enumerate(rows) if row.allowed is not None})
    forbid_banned(logits, rows)
    return stuck_rows(logits, [i for i, row in enumerate(rows) if row.is_limited or i in allowed])


def _choose(logits: Tensor, rows: Sequence[SamplingRow]) -> list[int]:
    token_ids = logits.argmax(dim=-1)
    drawn = [i for i, row in enumerate(rows) if not row.params.is_greedy]
    if drawn:
        numbers = [uniform(rows[i].params.seed or 0, rows[i].num_output_tokens) for i in drawn]
        token_ids[drawn] = draw(logits[drawn], [rows[i].params for i in drawn], numbers)
    chosen: list[int] = token_ids.tolist()
    return chosen

"""Log-probabilities of the tokens of prompts.

Shapes: s rows of prompts that are scored in a step, d hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import NamedTuple

from torch import Tensor

from chiasm.engine.runner.records import SequenceRecord
from chiasm.sampling.logprobs import report
from chiasm.schema.plan import ScheduledRequest, TokenLogprob

# Beyond it products get no faster. On a CPU the C library keeps no larger tensors for the next ones of their size:
# those of 64 rows of 152k logits take more than twice as long.
_MOST_ROWS = {"cpu": 16, "cuda": 64}


class ScoredRows(NamedTuple):
    """Rows of a prompt that are scored in a step.

    Attributes:
        request_id: whose.
        next_ids: the token behind each.
        num_top: how many of the likeliest tokens are reported in the place of each.
    """

    request_id: str
    next_ids: Sequence[int]
    num_top: int

    @classmethod
    def of(cls, record: SequenceRecord, part: ScheduledRequest) -> ScoredRows:
        """Those of a sequence."""
        start, stop = part.scored
        return cls(record.request_id, record.token_ids[start + 1 : stop + 1], record.sampling.prompt_logprobs or 0)


def score(
    hidden: Tensor,
    parts: Sequence[ScoredRows],
    compute_logits: Callable[[Tensor], Tensor],
    num_rows: int,
    *,
    is_reporting: bool,
) -> dict[str, tuple[TokenLogprob, ...]]:
    """Report the prompts' own tokens, slice by slice: logits of all rows could be larger than the cache.

    Args:
        hidden: [s, d], the rows of all parts behind one another.
        parts: whose they are.
        compute_logits: [m, d] -> [m, V]; a collective where ranks share the vocabulary.
        num_rows: the most that ``compute_logits`` may get.
        is_reporting: whether this rank is the one that reports; the others only take part.
    """
    next_ids = list(chain.from_iterable(part.next_ids for part in parts))
    nums_top = list(chain.from_iterable([part.num_top] * len(part.next_ids) for part in parts))
    found: list[TokenLogprob] = []
    num_rows = min(num_rows, _MOST_ROWS[hidden.device.type])
    for start in range(0, len(next_ids), num_rows):
        own = slice(start, start + num_rows)
        logits = compute_logits(hidden[own])
        if is_reporting:
            found += report(logits.log_softmax(dim=-1), next_ids[own], nums_top[own])
    if not is_reporting:
        return {}
    reports = iter(found)
    return {part.request_id: tuple(next(reports) for _ in part.next_ids) for part in parts}

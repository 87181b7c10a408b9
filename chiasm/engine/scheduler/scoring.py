"""Log-probabilities of prompts: which of a prompt's tokens are still to be reported, and what may be cached of it.

What may follow a token is known only where the token is computed, and the prefix cache holds keys and values alone.
So a prompt whose log-probabilities are wanted takes nothing from it that has not been scored before: nothing at
first, and after it gave way to others as much as it had scored by then.
"""

from __future__ import annotations

from chiasm.engine.scheduler.sequence import Sequence


def num_cacheable(sequence: Sequence) -> int:
    """Tokens that may come from the prefix cache, so that at least one is left to compute."""
    most = len(sequence.token_ids) - 1
    return min(most, sequence.num_scored) if _num_unscored(sequence) else most


def part_to_score(sequence: Sequence, num_tokens: int) -> tuple[int, int]:
    """From and to which of the next tokens to compute those behind them are reported; (0, 0) where none are.

    Behind the prompt's last token comes the answer, which reports for itself.
    """
    if not _num_unscored(sequence):
        return (0, 0)
    start = max(sequence.num_computed_tokens, sequence.num_scored)
    stop = min(sequence.num_computed_tokens + num_tokens, sequence.num_prompt_tokens - 1)
    return (start, stop) if start < stop else (0, 0)


def _num_unscored(sequence: Sequence) -> int:
    if sequence.request.sampling.prompt_logprobs is None:
        return 0
    return sequence.num_prompt_tokens - 1 - sequence.num_scored

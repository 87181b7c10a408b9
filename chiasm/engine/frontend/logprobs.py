"""Log-probabilities with the texts of their tokens."""

from __future__ import annotations

from collections.abc import Sequence

from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.schema.output import Logprob
from chiasm.schema.plan import TokenLogprob


def named_logprobs(tokenizer: Tokenizer, token_id: int, entry: TokenLogprob) -> dict[int, Logprob]:
    """The token itself first, then the likeliest ones in its place, best first."""
    by_id = {token_id: _named(tokenizer, token_id, entry.logprob, entry.rank)}
    for rank, (top_id, logprob) in enumerate(entry.top, start=1):
        if top_id not in by_id:
            by_id[top_id] = _named(tokenizer, top_id, logprob, rank)
    return by_id


def _named(tokenizer: Tokenizer, token_id: int, logprob: float, rank: int) -> Logprob:
    is_special = token_id in tokenizer.special_ids
    return Logprob(logprob, rank, tokenizer.token_text(token_id), tokenizer.token_bytes(token_id), is_special)


class PromptLogprobs:
    """Those of a prompt, which come chunk by chunk before the first token of its answer.

    Args:
        tokenizer: of the model.
        token_ids: the prompt.

    Attributes:
        named: of its tokens so far; None for the first, which nothing comes before.
    """

    def __init__(self, tokenizer: Tokenizer, token_ids: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._token_ids = token_ids
        self.named: list[dict[int, Logprob] | None] = [None]

    def add(self, entries: Sequence[TokenLogprob]) -> None:
        """Take in those of the next tokens."""
        start = len(self.named)
        own = zip(self._token_ids[start : start + len(entries)], entries, strict=True)
        self.named += [named_logprobs(self._tokenizer, token_id, entry) for token_id, entry in own]

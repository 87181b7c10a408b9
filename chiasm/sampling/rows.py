"""What sampling needs to know of the sequences of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from chiasm.schema.sampling import SamplingParams


@dataclass(frozen=True)
class SamplingRow:
    """One sequence.

    Attributes:
        request_id: its name.
        params: its parameters, with the seed filled in.
        token_ids: its tokens so far; not copied, a long prompt is not walked for each token.
        num_prompt_tokens: how many of them are the prompt.
        banned: sequences of tokens of which the answer may hold none.
        allowed: a bit for each token that the answer may have, as ``mask_of`` gives them; None allows all.
    """

    request_id: str
    params: SamplingParams
    token_ids: Sequence[int]
    num_prompt_tokens: int
    banned: Sequence[Sequence[int]] = ()
    allowed: bytes | None = None

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

    @property
    def is_limited(self) -> bool:
        """Whether its parameters exclude tokens that it could have next."""
        return self.allowed is not None or bool(self.banned) or self.num_output_tokens < self.params.min_tokens

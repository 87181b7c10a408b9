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
    """

    request_id: str
    params: SamplingParams
    token_ids: Sequence[int]
    num_prompt_tokens: int

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return len(self.token_ids) - self.num_prompt_tokens

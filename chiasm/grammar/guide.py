"""Following an answer token by token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chiasm.schema.structured import Thinking

if TYPE_CHECKING:
    from llguidance import LLMatcher


class GuideError(Exception):
    """There is no telling what comes next: finding it out takes more work than is allowed."""


class AnswerGuide:
    """Says which tokens an answer may have next.

    What it knows follows from the answer's tokens alone, so an answer that is taken up again after a preemption goes
    on as it would have.

    Args:
        matcher: of the answer's form, before its first token.
        thinking: what the model may say before it.
    """

    def __init__(self, matcher: LLMatcher, thinking: Thinking | None) -> None:
        self._matcher = matcher
        self._thinking = thinking
        self._is_thinking = thinking is not None and thinking.is_open
        self._num_taken = 0

    def take(self, answer: Sequence[int]) -> None:
        """Take in the answer's tokens so far, of which those that are known already are passed over."""
        for token_id in answer[self._num_taken :]:
            if self._is_thinking:
                assert self._thinking is not None
                self._is_thinking = token_id != self._thinking.end
            elif self._num_taken == 0 and self._thinking is not None and token_id == self._thinking.start:
                self._is_thinking = True
            else:
                self._matcher.consume_token(token_id)
            self._num_taken += 1

    def allowed(self) -> bytes | None:
        """A bit for each token, the lowest of a byte first; None if all are allowed.

        Raises:
            GuideError: for this and every later token.
        """
        if self._is_thinking:
            return None
        mask: bytes = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GuideError(self._matcher.get_error())
        if self._num_taken == 0 and self._thinking is not None:
            index, bit = divmod(self._thinking.start, 8)
            return mask[:index] + bytes([mask[index] | 1 << bit]) + mask[index + 1 :]
        return mask

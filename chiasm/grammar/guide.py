"""Following an answer token by token."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from chiasm.grammar.thinking import ThinkingState
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
        vocab_size: rows of the output projection.
        end_token_ids: tokens that would end the answer, which must not happen before the form has begun.
    """

    def __init__(
        self, matcher: LLMatcher, thinking: Thinking | None, vocab_size: int, end_token_ids: Iterable[int]
    ) -> None:
        self._matcher = matcher
        self._start = None if thinking is None else thinking.start
        self._state = ThinkingState(thinking)
        self._thoughts = b"" if thinking is None else _all_but((*end_token_ids, *thinking.barred), vocab_size)
        self._num_taken = 0

    def take(self, answer: Sequence[int]) -> None:
        """Take in the answer's tokens so far, of which those that are known already are passed over."""
        for token_id in answer[self._num_taken :]:
            if not self._state.take(token_id):
                self._matcher.consume_token(token_id)
            self._num_taken += 1

    def allowed(self) -> bytes:
        """A bit for each token, the lowest of a byte first.

        Raises:
            GuideError: for this and every later token.
        """
        if self._state.is_thinking:
            return self._thoughts
        mask: bytes = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise GuideError(self._matcher.get_error())
        if self._num_taken == 0 and self._start is not None:
            index, bit = divmod(self._start, 8)
            return mask[:index] + bytes([mask[index] | 1 << bit]) + mask[index + 1 :]
        return mask


def _all_but(token_ids: Iterable[int], vocab_size: int) -> bytes:
    mask = bytearray(b"\xff" * -(-vocab_size // 8))
    for token_id in token_ids:
        mask[token_id // 8] &= ~(1 << token_id % 8)
    return bytes(mask)

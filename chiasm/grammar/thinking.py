"""Whether an answer so far is what the model thinks before it says anything."""

from __future__ import annotations

from chiasm.schema.structured import Thinking


class ThinkingState:
    """Follows one answer's tokens.

    Args:
        thinking: the tokens around it; None if there is none.

    Attributes:
        is_thinking: whether the tokens so far end within it.
    """

    def __init__(self, thinking: Thinking | None) -> None:
        self.is_thinking = thinking is not None and thinking.is_open
        self._thinking = thinking
        self._is_first = True

    def take(self, token_id: int) -> bool:
        """Take in a token; returns whether it is of the thinking, marks included."""
        thinking, is_first, self._is_first = self._thinking, self._is_first, False
        if thinking is None:
            return False
        if self.is_thinking:
            self.is_thinking = token_id != thinking.end
            return True
        self.is_thinking = is_first and token_id == thinking.start
        return self.is_thinking

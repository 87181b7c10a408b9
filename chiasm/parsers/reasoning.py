"""How models mark what they think before they answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningFormat:
    """The marks around the reasoning; both forms of ``start`` are known: written by the model, or by the template.

    Attributes:
        start: begins it.
        end: ends it.
    """

    start: str
    end: str

    def is_open_after(self, prompt: str, *, continues_message: bool) -> bool:
        """Whether an answer to this prompt goes on with reasoning that the prompt has begun.

        Only the prompt's end tells: turns before it have reasoning of their own, which is over.

        Args:
            prompt: as the template has rendered it.
            continues_message: whether it ends within a message of the assistant's.
        """
        if continues_message:
            return prompt.rfind(self.start) > prompt.rfind(self.end)
        return prompt.rstrip().endswith(self.start)


THINK = ReasoningFormat("<think>", "</think>")

"""How models mark what they think before they answer."""

from __future__ import annotations

from collections.abc import Sequence
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

    def is_open_after(self, prompt: str, last: Sequence[str] | None = None) -> bool:
        """Whether an answer to this prompt goes on with reasoning that the prompt has begun.

        Only the prompt's end tells: turns before it have reasoning of their own, which is over, and what users and
        tools write begins none.

        Args:
            prompt: as the template has rendered it.
            last: where the prompt ends with a message and not with the head of a new one, that message's texts if it
                is the assistant's, else nothing.
        """
        if last is None:
            return prompt.rstrip().endswith(self.start)
        start = _start_of(last, prompt)
        before, own = prompt[:start].rstrip(), prompt[start:].lstrip()
        has_begun = bool(own) and (own.startswith(self.start) or before.endswith(self.start))
        return has_begun and self.end not in own


def _start_of(texts: Sequence[str], prompt: str) -> int:
    """Where the texts at a prompt's end begin, as far back as the template has left them as they were."""
    start = len(prompt)
    for text in reversed(texts):
        rest, wanted = prompt[:start].rstrip(), text.strip()
        pairs = zip(reversed(rest), reversed(wanted), strict=False)
        num_alike = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(rest), len(wanted)))
        start = len(rest) - num_alike
        if num_alike < len(wanted):
            break
    return start


THINK = ReasoningFormat("<think>", "</think>")

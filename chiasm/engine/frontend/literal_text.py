"""Keeping what users write from becoming special tokens.

Users' strings go through a chat template, which cuts and joins them as it likes, before anything is tokenised. So
each string gets *seams* first: characters that no text has, inside every special token that it spells out and at an
end that could become part of one. A special token in the rendered prompt is real only if no seam lies within it. That
holds however the template puts the pieces together: a seam may be lost with the text around it, but it can't be
separated from a token that it breaks.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

SEAM = "\ufdd0"  # a noncharacter of Unicode: reserved for use inside programs, never part of a text


class Piece(NamedTuple):
    """Part of a prompt; in a literal one, special tokens are just their characters."""

    text: str
    is_literal: bool


class LiteralText:
    """Knows a tokenizer's special tokens in users' strings and in rendered prompts.

    Args:
        specials: the special tokens as they are written.
    """

    def __init__(self, specials: Sequence[str]) -> None:
        # A token of one character has no inside where a seam could go; no tokenizer for chats has such a one.
        self._specials = tuple(text for text in specials if len(text) > 1)
        self._pattern = any_of(self._specials)
        self._longest = max(map(len, self._specials), default=0)
        self._beginnings = {text[:n] for text in self._specials for n in range(1, len(text))}
        self._ends = {text[n:] for text in self._specials for n in range(1, len(text))}

    def seal(self, text: str) -> str:
        """A user's string with seams wherever it could otherwise make or complete a special token.

        Seams that the user wrote do no harm.
        """
        text = self._pattern.sub(lambda match: match[0][0] + SEAM + match[0][1:], text)
        # Templates trim, so that the space around a text does not part it from its neighbours.
        core = text.strip()
        head = SEAM if self._may_end_special(core) else ""
        tail = SEAM if self._may_begin_special(core) else ""
        return text.replace(core, head + core + tail, 1) if head or tail else text

    def pieces(self, rendered: str) -> list[Piece]:
        """The text of a rendered prompt without its seams, in pieces that can be tokenised apart.

        A literal piece reaches from one real special token to the next, so that its text is tokenised as any other.
        """
        parts = rendered.split(SEAM)
        text = "".join(parts)
        if len(parts) == 1:
            return [Piece(text, is_literal=False)] if text else []
        seams = list(accumulate(map(len, parts[:-1])))
        pieces: list[Piece] = []
        done = run = 0  # where the next piece, and the text since the last real special token, begin
        has_literal = False
        for start, end, is_real in (*self._find(text, seams), (len(text), len(text), True)):
            if not is_real:
                has_literal = True
                continue
            if has_literal:
                pieces += (Piece(text[done:run], is_literal=False), Piece(text[run:start], is_literal=True))
                done = start
            run, has_literal = end, False
        pieces.append(Piece(text[done:], is_literal=False))
        return [piece for piece in pieces if piece.text]

    def _find(self, text: str, seams: Sequence[int]) -> Iterator[tuple[int, int, bool]]:
        """Where special tokens are spelled out: start, end, and whether no seam lies in between."""
        for match in self._pattern.finditer(text):
            start, end = match.span()
            index = bisect_right(seams, start)
            yield start, end, index == len(seams) or seams[index] >= end

    def _may_begin_special(self, text: str) -> bool:
        """Whether a special token may begin in this text and end in what follows."""
        longest = min(self._longest - 1, len(text))
        return any(text[-n:] in self._beginnings for n in range(1, longest + 1)) or self._is_inside_special(text)

    def _may_end_special(self, text: str) -> bool:
        """Whether this text may be the end of a special token that begins in what precedes it."""
        longest = min(self._longest - 1, len(text))
        return any(text[:n] in self._ends for n in range(1, longest + 1))

    def _is_inside_special(self, text: str) -> bool:
        # A plain word stays as it is: templates compare those ("auto", "high"), and write the brackets themselves.
        if not text or text.isalnum() or len(text) >= self._longest:
            return False
        return any(text in special for special in self._specials)


def any_of(words: Sequence[str]) -> re.Pattern[str]:
    """A pattern that finds the longest of the words at each place.

    It branches character by character: of a plain list of alternatives ``re`` would try each at every place, which a
    text that is full of beginnings makes slow for the thousand special tokens that some tokenizers have.
    """
    return re.compile(_branch(set(words)) if words else "(?!)")


def _branch(words: set[str]) -> str:
    tails: dict[str, set[str]] = {}
    for word in words - {""}:
        tails.setdefault(word[0], set()).add(word[1:])
    options = [re.escape(first) + _branch(rest) for first, rest in sorted(tails.items())]
    joined = options[0] if len(options) == 1 else f"(?:{'|'.join(options)})" if options else ""
    return f"(?:{joined})?" if joined and "" in words else joined

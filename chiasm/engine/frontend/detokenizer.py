"""Token ids to text, piece by piece, and the strings that end an answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.schema.sampling import SamplingParams

_REPLACEMENT = "\ufffd"
# Tokens of context with which new ones are decoded: some tokenizers write a token differently at the start of a text.
_CONTEXT = 6
# A character has at most four bytes: if this many tokens make no whole one, they never will.
_MAX_PENDING = 8


class TextDelta(NamedTuple):
    """New text of an answer, and the stop string that ended it, if one did."""

    text: str
    stop: str | None = None


class Detokenizer:
    """Turns one answer's tokens into text as they come.

    Text is held back while it may still change: bytes of an unfinished character, and the beginning of what may
    become a stop string.

    Args:
        tokenizer: of the model.
        prompt_token_ids: the prompt; its end gives the first token its context.
        params: the request's parameters.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._skips_special = params.skip_special_tokens
        self._stops = params.stop
        self._keeps_stop = params.include_stop_str_in_output
        self._token_ids = list(prompt_token_ids[-_CONTEXT:])
        self._context_start = 0
        self._decoded_until = len(self._token_ids)
        self._held = ""
        self._longest_stop = max(map(len, self._stops), default=0)

    def add(self, token_ids: Sequence[int]) -> TextDelta:
        """Take in new tokens; returns the text that is certain now."""
        fresh = "".join(self._decode(token_id) for token_id in token_ids)
        if not self._stops:
            return TextDelta(fresh)
        text = self._held + fresh
        found = self._find_stop(text)
        if found is not None:
            stop, position = found
            self._held = ""
            return TextDelta(text[: position + (len(stop) if self._keeps_stop else 0)], stop)
        keep = self._possible_stop_length(text)
        self._held = text[len(text) - keep :]
        return TextDelta(text[: len(text) - keep])

    def finish(self) -> str:
        """What was held back, once no more tokens come."""
        window = self._token_ids[self._context_start :]
        before = self._text(self._token_ids[self._context_start : self._decoded_until])
        rest = self._text(window)[len(before) :]
        held, self._held = self._held, ""
        self._decoded_until = len(self._token_ids)
        return held + rest

    def _decode(self, token_id: int) -> str:
        """The text that one more token makes certain.

        The window from ``_context_start`` is decoded with and without the tokens since ``_decoded_until``; the
        difference is their text, however their bytes depend on each other.
        """
        self._token_ids.append(token_id)
        before = self._text(self._token_ids[self._context_start : self._decoded_until])
        after = self._text(self._token_ids[self._context_start :])
        is_pending = len(self._token_ids) - self._decoded_until < _MAX_PENDING
        if is_pending and (after.endswith(_REPLACEMENT) or len(after) <= len(before)):
            return ""
        self._context_start = self._decoded_until
        self._decoded_until = len(self._token_ids)
        return after[len(before) :]

    def _text(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skips_special)

    def _find_stop(self, text: str) -> tuple[str, int] | None:
        """The stop string that begins first."""
        found = [(text.find(stop), stop) for stop in self._stops if stop in text]
        if not found:
            return None
        position, stop = min(found)
        return stop, position

    def _possible_stop_length(self, text: str) -> int:
        """Length of the longest end of the text that is the beginning of a stop string."""
        for length in range(min(len(text), self._longest_stop - 1), 0, -1):
            end = text[len(text) - length :]
            if any(stop.startswith(end) for stop in self._stops):
                return length
        return 0

"""Token ids to text, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence

from chiasm.engine.frontend.stop_strings import StopStrings, TextDelta
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.grammar.thinking import ThinkingState
from chiasm.schema.sampling import SamplingParams

_REPLACEMENT = "\ufffd"
# Tokens of context with which new ones are decoded: some tokenizers write a token differently at the start of a text.
_CONTEXT = 6
# Tokens that may wait for the rest of a character; no token costs more than decoding this many.
_MAX_PENDING = 32


class NoText:
    """In place of a ``Detokenizer`` where nobody wants to read the answer."""

    def add(self, token_id: int) -> TextDelta:
        """See ``Detokenizer``."""
        del token_id
        return TextDelta("")

    def finish(self) -> TextDelta:
        """See ``Detokenizer``."""
        return TextDelta("")


class Detokenizer:
    """Turns one answer's tokens into text as they come.

    Text is held back while it may still change: bytes of an unfinished character, and the beginning of what may
    become a stop string. Before an answer's form has begun, stop strings are just text: they mustn't end it there.

    Args:
        tokenizer: of the model.
        prompt_token_ids: the prompt; its end gives the first token its context.
        params: the request's parameters.
    """

    def __init__(self, tokenizer: Tokenizer, prompt_token_ids: Sequence[int], params: SamplingParams) -> None:
        self._tokenizer = tokenizer
        self._skips_special = params.skip_special_tokens
        shown = {
            token.token_id for text, token in tokenizer.added_tokens.items() if text in params.shown_special_tokens
        }
        self._skipped = tokenizer.special_ids - shown if shown and self._skips_special else frozenset()
        self._min_tokens = params.min_tokens
        self._stops = StopStrings(params.stop, keeps_stop=params.include_stop_str_in_output)
        form = params.structured_outputs
        self._thinking = ThinkingState(None if form is None else form.thinking)
        self._num_tokens = 0
        self._window = list(prompt_token_ids[-_CONTEXT:])
        self._num_context = len(self._window)  # tokens of the window whose text has been given, and ends there
        self._num_given = len(self._text(self._window))  # characters of the window's text that have been given

    def add(self, token_id: int) -> TextDelta:
        """Take in a token; returns the text that is certain now."""
        self._num_tokens += 1
        may_stop = not self._thinking.take(token_id) and self._num_tokens >= self._min_tokens
        return self._stops.add(self._decode(token_id), may_stop=may_stop)

    def finish(self) -> TextDelta:
        """What was held back, once no more tokens come."""
        rest = self._give(self._text(self._window))
        may_stop = not self._thinking.is_thinking and self._num_tokens >= self._min_tokens
        text, stop = self._stops.add(rest, may_stop=may_stop)
        return TextDelta(text if stop is not None else text + self._stops.flush(), stop)

    def _decode(self, token_id: int) -> str:
        """The text that one more token makes certain.

        All tokens of the window are decoded together, however their bytes depend on each other; what of the text has
        not been given yet is new. Only a character at its very end can be unfinished.
        """
        self._window.append(token_id)
        text = self._text(self._window)
        if text.endswith(_REPLACEMENT) or len(text) <= self._num_given:
            fresh = self._give(text.rstrip(_REPLACEMENT))
            is_stuck = len(self._window) - self._num_context >= _MAX_PENDING
            return fresh + self._give_up(text) if is_stuck else fresh
        fresh = self._give(text)
        self._drop(self._num_context)
        return fresh

    def _give(self, text: str) -> str:
        """What is new in the window's text; it counts as given from now on."""
        fresh = text[self._num_given :]
        self._num_given += len(fresh)
        return fresh

    def _drop(self, num_tokens: int) -> None:
        """Forget the first tokens of the window; the text of the others has been given."""
        del self._window[:num_tokens]
        self._num_context = len(self._window)
        self._num_given = len(self._text(self._window))

    def _give_up(self, text: str) -> str:
        """Shorten a window that did not end with a whole character for long: invalid bytes, skipped tokens, or
        tokens that each end in the middle of a character. Its end is kept: only the last character is unfinished.
        """
        self._window = self._window[-_CONTEXT:]
        rest = self._text(self._window)
        num_unfinished = 1 if rest.endswith(_REPLACEMENT) else 0
        fresh = self._give(text[: len(text) - num_unfinished])
        self._num_context, self._num_given = 0, len(rest) - num_unfinished
        return fresh

    def _text(self, token_ids: Sequence[int]) -> str:
        if self._skipped:
            token_ids = [token_id for token_id in token_ids if token_id not in self._skipped]
            return self._tokenizer.decode(token_ids, skip_special_tokens=False)
        return self._tokenizer.decode(token_ids, skip_special_tokens=self._skips_special)

"""The tokens of words that an answer may not have."""

from __future__ import annotations

from collections.abc import Sequence

from chiasm.engine.frontend.tokenizer import Tokenizer


def banned_sequences(words: Sequence[str], tokenizer: Tokenizer, vocab_size: int) -> tuple[tuple[int, ...], ...]:
    """The words as they are written at the beginning of a text and behind a space, each way once.

    Args:
        words: as ``SamplingParams.bad_words`` has them.
        tokenizer: of the model.
        vocab_size: tokens that can be sampled; what ends with another one can't come anyway.
    """
    spellings = (spelling for word in words for spelling in (word, word if word[0].isspace() else f" {word}"))
    sequences = (tuple(tokenizer.encode(spelling)) for spelling in spellings)
    return tuple(dict.fromkeys(tokens for tokens in sequences if tokens and tokens[-1] < vocab_size))

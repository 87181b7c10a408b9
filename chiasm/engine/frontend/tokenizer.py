"""A checkpoint's tokenizer, without torch and without transformers wherever there is a ``tokenizer.json``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer as FastTokenizer

from chiasm.errors import UserError


class Tokenizer:
    """Text to token ids and back.

    Args:
        fast: the tokenizers library's own object.

    Attributes:
        vocab_size: one more than the largest id.
        special_ids: ids of tokens that are no text.
    """

    def __init__(self, fast: FastTokenizer) -> None:
        self._fast = fast
        self.vocab_size = fast.get_vocab_size(with_added_tokens=True)
        added = fast.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        self._special_texts = tuple(token.content for token in added.values() if token.special)
        self.token_text = lru_cache(maxsize=4096)(self._token_text)

    @property
    def special_texts(self) -> tuple[str, ...]:
        """The special tokens as they are written in a prompt."""
        return self._special_texts

    def encode(self, text: str) -> list[int]:
        """Token ids of a text in which special tokens mean themselves; nothing is added around it."""
        self._fast.encode_special_tokens = False
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def encode_literal(self, text: str) -> list[int]:
        """Token ids of a text in which nothing is special: ``<|im_end|>`` is just its characters."""
        self._fast.encode_special_tokens = True
        try:
            return list(self._fast.encode(text, add_special_tokens=False).ids)
        finally:
            self._fast.encode_special_tokens = False

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of tokens; bytes that are no whole character yet show as U+FFFD."""
        return str(self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def ids_of(self, texts: Iterable[str]) -> dict[str, int]:
        """Ids of tokens by their text; those it does not have are left out."""
        found = {text: self._fast.token_to_id(text) for text in texts}
        return {text: token_id for text, token_id in found.items() if token_id is not None}

    def _token_text(self, token_id: int) -> str:
        return self.decode([token_id], skip_special_tokens=False)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint.

    Where there is only an older format, transformers converts it (which takes its import time).

    Raises:
        UserError: if the checkpoint has none that can be read.
    """
    path = folder / "tokenizer.json"
    try:
        if path.is_file():
            return Tokenizer(FastTokenizer.from_file(str(path)))
        from transformers import AutoTokenizer

        return Tokenizer(AutoTokenizer.from_pretrained(folder).backend_tokenizer)
    except Exception as error:
        raise UserError(f"the checkpoint's tokenizer can't be read: {error}", param="model") from error

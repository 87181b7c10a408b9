"""A checkpoint's tokenizer, without torch and without transformers wherever there is a ``tokenizer.json``."""

from __future__ import annotations

import threading
from collections.abc import Sequence, Set
from functools import lru_cache
from pathlib import Path

from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer

from chiasm.config.checkpoint import read_special_texts, read_tokenizer
from chiasm.errors import UserError
from chiasm.schema.chat import AddedToken as AddedTokenInfo

# How byte-level vocabularies write bytes: printable ones as themselves, the others as characters from U+0100 on
# (Radford et al. 2019, GPT-2, its encoder.py).
_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
_HIDDEN = [byte for byte in range(256) if byte not in _PRINTABLE]
_BYTE_OF_CHAR = {chr(byte): byte for byte in _PRINTABLE} | {chr(0x100 + i): byte for i, byte in enumerate(_HIDDEN)}


class Tokenizer:
    """Text to token ids and back. It may be used from several threads, and lets others run while it encodes.

    Args:
        fast: the tokenizers library's own object; its saved truncation and padding are taken off.

    Attributes:
        vocab_size: one more than the largest id.
        added_ids: ids of tokens that stand beside the vocabulary proper, special ones among them.
        added_tokens: the same by how they are written.
        special_ids: ids of tokens that are no text.
        special_texts: the same tokens as they are written in a prompt.
    """

    def __init__(self, fast: FastTokenizer) -> None:
        fast.no_truncation()
        fast.no_padding()
        self._fast = fast
        self._lock = threading.Lock()  # whether special tokens are literal is a state of the tokenizer
        self.vocab_size = 1 + max(fast.get_vocab(with_added_tokens=True).values())
        added = fast.get_added_tokens_decoder()
        self.added_ids = frozenset(added)
        self.added_tokens = {token.content: AddedTokenInfo(i, token.special) for i, token in added.items()}
        special = {i: token.content for i, token in added.items() if token.special}
        self.special_ids = frozenset(special)
        self.special_texts = tuple(special.values())
        self.token_text = lru_cache(maxsize=4096)(self._token_text)

    def encode(self, text: str, *, adds_special: bool = False) -> list[int]:
        """Token ids of a text in which special tokens mean themselves.

        Args:
            text: to encode.
            adds_special: whether to put around it what the tokenizer puts around a text, such as a token to begin;
                not a second time where the text begins with it already.

        Raises:
            UserError: if the text is not valid Unicode.
        """
        token_ids = self._encode(text, is_literal=False, adds_special=adds_special)
        begins_twice = adds_special and len(token_ids) > 1 and token_ids[0] == token_ids[1]
        return token_ids[1:] if begins_twice and token_ids[0] in self.special_ids else token_ids

    def encode_literal(self, text: str) -> list[int]:
        """Token ids of a text in which nothing is special: ``<|im_end|>`` is just its characters.

        Raises:
            UserError: if the text is not valid Unicode, or the tokenizer has no other way to write a special token.
        """
        token_ids = self._encode(text, is_literal=True)
        for token_id in self.special_ids.intersection(token_ids):
            raise UserError(f"the text contains {self.token_text(token_id)!r}, which this model can't read as text.")
        return token_ids

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """The text of tokens; bytes that are no whole character yet show as U+FFFD."""
        return str(self._fast.decode(list(token_ids), skip_special_tokens=skip_special_tokens))

    def token_piece(self, token_id: int) -> str:
        """A token as the vocabulary writes it."""
        return self._fast.id_to_token(token_id) or ""

    def _encode(self, text: str, *, is_literal: bool, adds_special: bool = False) -> list[int]:
        try:
            with self._lock:
                self._fast.encode_special_tokens = is_literal
                # A batch of one, because only batches are encoded without Python's lock and without offsets.
                return list(self._fast.encode_batch_fast([text], add_special_tokens=adds_special)[0].ids)
        except (TypeError, UnicodeEncodeError) as error:
            raise UserError("the text is not valid Unicode: it has half of a surrogate pair.") from error

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for, also where they are no whole character."""
        written = self._fast.id_to_token(token_id) or ""
        if token_id not in self.added_ids and all(char in _BYTE_OF_CHAR for char in written):
            return bytes(_BYTE_OF_CHAR[char] for char in written)
        return self.token_text(token_id).encode()

    def _token_text(self, token_id: int) -> str:
        return self.decode([token_id], skip_special_tokens=False)


def load_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a checkpoint.

    Where there is only an older format, transformers converts it (which takes its import time).

    Raises:
        UserError: if the checkpoint has none that can be read.
    """
    text = read_tokenizer(folder)
    try:
        fast = FastTokenizer.from_str(text)
    except Exception as error:
        raise UserError(f"the checkpoint's tokenizer can't be read: {error}", param="model") from error
    _mark_special(fast, read_special_texts(folder))
    return Tokenizer(fast)


def _mark_special(fast: FastTokenizer, texts: Set[str]) -> None:
    """Make the tokens special that the settings name so: not every ``tokenizer.json`` does."""
    plain = [t for t in fast.get_added_tokens_decoder().values() if t.content in texts and not t.special]
    fast.add_special_tokens(
        [
            AddedToken(t.content, special=True, normalized=t.normalized, lstrip=t.lstrip, rstrip=t.rstrip)
            for t in plain
        ]
    )

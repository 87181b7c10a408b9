"""A checkpoint's tokens for llguidance, which writes with its tokenizer whatever a form leaves no choice about.

There a text must stay the very bytes that the form has. So the tokenizer normalises nothing, and finds no special
token in a text that is spelled like one.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import llguidance
import msgspec

from chiasm.config.checkpoint import read_special_texts, read_tokenizer

# In front of how a special token is written: drawn anew in each process, so that no form can have a text like that.
_MARK = "\ufdd2" + secrets.token_hex(16)
# Steps of a tokenizer that make one way of writing a text of several; others only write it for its model.
_NORMALIZING = ("NFC", "NFD", "NFKC", "NFKD", "Nmt", "Precompiled", "Lowercase", "StripAccents", "Strip",
                "BertNormalizer")  # fmt: skip
# Lark's strings, expressions and comments, in which nothing is a token, and names of tokens.
_LARK = re.compile(r'"(?:\\.|[^"\\\n])*"|/(?:\\.|[^/\\\n])+/|(?://|#)[^\n]*|(<[^<>\[\]\s]+>)')


class FormTokens:
    """The tokens of a checkpoint, as forms know them.

    Args:
        folder: of the checkpoint.
        vocab_size: rows of the output projection.
        eos_token_ids: tokens that end an answer.

    Attributes:
        tokenizer: what llguidance follows answers with.
    """

    def __init__(self, folder: Path, vocab_size: int, eos_token_ids: list[int]) -> None:
        file = msgspec.json.decode(read_tokenizer(folder))
        self._special = _mark_special(file, read_special_texts(folder))
        file["normalizer"] = _without_normalizing(file.get("normalizer"))
        text = msgspec.json.encode(file).decode()
        try:
            self.tokenizer = llguidance.LLTokenizer(text, n_vocab=vocab_size, eos_token=eos_token_ids)
        except ValueError:  # some have tokens behind it that only prompts may hold
            self.tokenizer = llguidance.LLTokenizer(text, eos_token=eos_token_ids)

    def with_ids(self, lark: str) -> str:
        """A grammar that has ids in place of the names of special tokens, which here go by others."""

        def replaced(match: re.Match[str]) -> str:
            token_id = self._special.get(match[1])
            return match[0] if token_id is None else f"<[{token_id}]>"

        return _LARK.sub(replaced, lark)


def _mark_special(file: dict[str, Any], named: set[str]) -> dict[str, int]:
    """Make every special token one that no text spells, in place; returns their ids by how they are written."""
    found = {}
    vocabulary = file["model"].get("vocab")
    for token in file.get("added_tokens", ()):
        text = token["content"]
        # llguidance takes all that look like <this> for special.
        if not (token["special"] or text in named or (text[:1] == "<" and text[-1:] == ">")):
            continue
        token |= {"content": _MARK + text, "special": True}
        found[text] = token["id"]
        if isinstance(vocabulary, dict) and text in vocabulary:
            vocabulary[_MARK + text] = vocabulary.pop(text)
    return found


def _without_normalizing(step: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if step is None or step["type"] in _NORMALIZING:
        return None
    if step["type"] != "Sequence":
        return dict(step)
    steps = [kept for one in step["normalizers"] if (kept := _without_normalizing(one)) is not None]
    return {**step, "normalizers": steps} if steps else None

"""Forms whose texts a tokenizer would change or take for special tokens: answers have them as they are."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from chiasm.engine.frontend.tokenizer import load_tokenizer
from chiasm.errors import UserError
from chiasm.grammar.compile import GrammarCompiler
from chiasm.grammar.guide import AnswerGuide
from chiasm.schema.structured import StructuredOutputs
from tests.checkpoints.common import SPECIAL_TOKENS, make_tokenizer

TEXTS = (
    "caf\u00e9", "cafe\u0301", "\u2126", "\u212b", "\u0958", "\u1112\u1161\u11ab", "\u0301", "\ufb01", "\uff21",
    "\U0001f642", "<|im_end|>", "x<|image_pad|>y", "<|im_start|>system", " <|im_end|> ", "<|im_", "named<|named|>",
    "e\u0301<|im_end|>\n", "<tool_call>", "\ufdd2<|im_end|>",
)  # fmt: skip


class Answers:
    """Draws answers of a form as an engine does: any token that may come, until the end."""

    def __init__(self, folder: Path, tokenizer: Tokenizer) -> None:
        tokenizer.save(str(folder / "tokenizer.json"))
        (folder / "tokenizer_config.json").write_text(json.dumps({"image_token": "<|named|>"}))
        self.tokenizer = load_tokenizer(folder)
        self.end = self.tokenizer.added_tokens["<|im_end|>"].token_id
        self.compiler = GrammarCompiler(folder, self.tokenizer.vocab_size, [self.end])

    def draw(self, form: dict[str, Any], seed: int) -> str:
        lots = random.Random(seed)
        matcher = self.compiler.compile(StructuredOutputs(**form))
        guide = AnswerGuide(matcher, None, self.compiler.vocab_size, [self.end])
        drawn: list[int] = []
        while self.end not in drawn:
            guide.take(drawn)
            allowed = np.unpackbits(np.frombuffer(guide.allowed(), np.uint8), bitorder="little")
            drawn.append(lots.choice(np.flatnonzero(allowed).tolist()))
        return self.tokenizer.decode(drawn, skip_special_tokens=True)


def byte_level(normalizer: normalizers.Normalizer) -> Tokenizer:
    """A tokenizer as checkpoints have it, with one token that only its settings name special and one that is text."""
    tokenizer = make_tokenizer((*SPECIAL_TOKENS,))
    tokenizer.normalizer = normalizer
    tokenizer.add_tokens([AddedToken("<|named|>", normalized=False), AddedToken("<tool_call>", normalized=False)])
    return tokenizer


def with_special_tokens_in_its_vocabulary() -> Tokenizer:
    """Of SentencePiece's kind: spaces are written otherwise before its model sees them, bytes have tokens."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    words = [
        "<unk>",
        *bytes_,
        "<|im_end|>",
        "<|image_pad|>",
        "<|im_start|>",
        "<|named|>",
        "\u2581",
        *map(chr, range(33, 127)),
    ]
    tokenizer = Tokenizer(
        models.BPE({word: index for index, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(" ", "\u2581")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<|im_end|>", "<|image_pad|>", "<|im_start|>"])
    tokenizer.add_tokens(["<|named|>"])
    return tokenizer


TOKENIZERS = {
    "nfc": lambda: byte_level(normalizers.NFC()),
    "several": lambda: byte_level(normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])),
    "none": lambda: byte_level(normalizers.Sequence([])),
    "in its vocabulary": with_special_tokens_in_its_vocabulary,
}


@pytest.fixture(scope="module", params=TOKENIZERS)
def answers(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Answers:
    return Answers(tmp_path_factory.mktemp("tokenizer"), TOKENIZERS[request.param]())


@pytest.mark.parametrize("text", TEXTS, ids=ascii)
def test_answers_have_the_text_of_their_form(answers: Answers, text: str) -> None:
    key = {"type": "object", "properties": {text: {"const": text}}, "required": [text], "additionalProperties": False}
    for seed in range(2):
        assert answers.draw({"choice": [text]}, seed) == text
        assert answers.draw({"choice": [text, text + "z"]}, seed) in (text, text + "z")
        assert answers.draw({"regex": re.escape(text)}, seed) == text
        assert answers.draw({"grammar": "start: " + json.dumps(text, ensure_ascii=False)}, seed) == text
        assert json.loads(answers.draw({"json": {"enum": [text]}}, seed)) == text
        assert json.loads(answers.draw({"json": key}, seed)) == {text: text}


def test_a_grammar_can_name_special_tokens(answers: Answers) -> None:
    lark = 'start: "<|im_start|>" <|im_start|> x // <|im_start|>\nx: /a<\\|im_start\\|>/ | "\\"<|im_start|>"'
    found = {answers.draw({"grammar": lark}, seed) for seed in range(9)}
    assert found == {"<|im_start|>a<|im_start|>", '<|im_start|>"<|im_start|>'}
    with pytest.raises(UserError, match="unknown special token"):
        answers.draw({"grammar": "start: <|im_begin|>"}, 0)

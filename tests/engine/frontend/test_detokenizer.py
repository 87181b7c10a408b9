from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models

from chiasm.engine.frontend.detokenizer import Detokenizer
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.schema.sampling import SamplingParams
from chiasm.schema.structured import StructuredOutputs, Thinking
from tests.checkpoints.common import SPECIAL_TOKENS
from tests.clocks import assert_linear
from tests.engine.frontend.support import token_id

PROMPT = (10, 20, 30)
VOCAB_SIZE = 400 + len(SPECIAL_TOKENS)


def stream(tokenizer: Tokenizer, ids: Sequence[int], prompt: Sequence[int] = PROMPT, **params: Any) -> list[str]:
    """The pieces of an answer's text, one for each token and one at the end; it may end early with a stop string."""
    detokenizer = Detokenizer(tokenizer, prompt, SamplingParams(**params))
    pieces = []
    for each in ids:
        text, stop = detokenizer.add(each)
        pieces.append(text)
        if stop is not None:
            return pieces
    return [*pieces, detokenizer.finish().text]


def make_sentencepiece() -> FastTokenizer:
    """A tokenizer in the manner of Llama 2: words begin with a mark, unknown characters are spelled in bytes."""
    pieces = ["<unk>", "<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghij", "▁a", "▁b", "中"]
    fast = FastTokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, [], byte_fallback=True))
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    fast.add_special_tokens(["<s>"])
    return fast


SENTENCEPIECE = make_sentencepiece()


# --- a form comes


@pytest.mark.parametrize("is_open", [True, False])
def test_no_stop_string_ends_an_answer_before_its_form(tokenizer: Tokenizer, is_open: bool) -> None:
    start, end = token_id(tokenizer, "<|im_start|>"), token_id(tokenizer, "<|im_end|>")
    form = StructuredOutputs(regex=".*", thinking=Thinking(start, end, is_open))
    ids = [*([] if is_open else [start]), *tokenizer.encode("a stop"), end, *tokenizer.encode("b stop c")]
    for size in range(len(ids)):
        text = "".join(stream(tokenizer, ids[:size], stop=["stop"], structured_outputs=form))
        assert "a stop b stop c".replace(" b", "b").startswith(text)
    assert "".join(stream(tokenizer, ids, stop=["stop"], structured_outputs=form)) == "a stopb "
    free = StructuredOutputs(regex=".*")
    assert "".join(stream(tokenizer, ids, stop=["stop"], structured_outputs=free)) == "a "


# --- the text is that of all tokens together


@settings(max_examples=400, deadline=None)
@given(text=st.text(max_size=60), skip=st.booleans())
@example(text="👩‍👩‍👧 e\u0301 中文 \ufffd\ufffd 🙂" * 5, skip=True)
@example(text="\ufffd" * 50 + "中", skip=True)
def test_text_in_pieces_equals_text_at_once(tokenizer: Tokenizer, text: str, skip: bool) -> None:
    ids = tokenizer.encode_literal(text)
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(stream(tokenizer, ids, skip_special_tokens=skip)) == whole


@settings(max_examples=400, deadline=None)
@given(ids=st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=30), skip=st.booleans())
def test_any_tokens_in_pieces_equal_the_same_at_once(tokenizer: Tokenizer, ids: list[int], skip: bool) -> None:
    whole = tokenizer.decode(ids, skip_special_tokens=skip)
    assert "".join(stream(tokenizer, ids, skip_special_tokens=skip)) == whole


@settings(max_examples=200, deadline=None)
@given(data=st.data(), few=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=4))
def test_long_runs_of_few_tokens(tokenizer: Tokenizer, data: st.DataObject, few: list[int]) -> None:
    """Runs of broken characters among them, which the first versions of other engines got stuck on."""
    ids = data.draw(st.lists(st.sampled_from(few), min_size=60, max_size=120))
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids, skip_special_tokens=True)


@settings(max_examples=300, deadline=None)
@given(text=st.text("abcdefghij 中éß🙂", max_size=30))
def test_words_with_marks_and_characters_in_bytes(text: str) -> None:
    ids: list[int] = []
    for char in text.replace(" ", "▁"):
        known = SENTENCEPIECE.token_to_id(char)
        ids += [known] if known is not None else [SENTENCEPIECE.token_to_id(f"<0x{b:02X}>") for b in char.encode()]
    prompt = [SENTENCEPIECE.token_to_id("a")]
    assert "".join(stream(Tokenizer(SENTENCEPIECE), ids, prompt)) == text, "the space before a word is part of it"


# --- what comes when


def test_text_comes_as_soon_as_it_is_certain(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("Hi 🙂!")
    pieces = stream(tokenizer, ids)
    assert "".join(pieces) == "Hi 🙂!"
    assert pieces[0] != ""
    assert all("\ufffd" not in piece for piece in pieces)
    assert pieces[-1] == "", "nothing is left for the end"
    smile = tokenizer.encode("🙂")
    assert len(smile) > 1, "this tokenizer must spell it in bytes"
    assert stream(tokenizer, smile) == [*[""] * (len(smile) - 1), "🙂", ""]


def test_an_unfinished_character_shows_at_the_end(tokenizer: Tokenizer) -> None:
    smile = tokenizer.encode("🙂")
    assert stream(tokenizer, [*tokenizer.encode("a"), *smile[:-1]])[-1] == "\ufffd"


def test_text_before_an_unfinished_character_is_not_held_back(tokenizer: Tokenizer) -> None:
    # "a" with the first byte of the character, then its others, in the alphabet that stands for bytes.
    fast = FastTokenizer(models.BPE({"a\u00e4": 0, "\u00b8": 1, "\u0143": 2}, []))
    fast.decoder = decoders.ByteLevel()
    assert stream(Tokenizer(fast), [0, 1, 2, 0], prompt=[0]) == ["a", "", "中", "a", "\ufffd"]


def test_invalid_bytes_go_on_after_a_while(tokenizer: Tokenizer) -> None:
    (lone,) = [i for i in range(256) if tokenizer.token_text(i) == "\ufffd"][:1]
    pieces = stream(tokenizer, [lone] * 200)
    longest_wait = max(len(run) for run in "".join("x" if piece else "." for piece in pieces).split("x"))
    assert longest_wait <= 32
    assert "".join(pieces) == "\ufffd" * 200


@pytest.mark.parametrize("kind", ["text", "broken", "special"])
def test_time_is_linear(tokenizer: Tokenizer, kind: str) -> None:
    (lone,) = [i for i in range(256) if tokenizer.token_text(i) == "\ufffd"][:1]
    ids = {"text": [40, 300, 50], "broken": [lone], "special": [token_id(tokenizer, "<|im_end|>")]}[kind]
    assert_linear(lambda size: stream(tokenizer, ids * (size // len(ids))), 3000)


# --- special tokens


def test_special_tokens_are_skipped_or_shown(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|><|endoftext|>b")
    assert "".join(stream(tokenizer, ids)) == "ab"
    assert "".join(stream(tokenizer, ids, skip_special_tokens=False)) == "a<|im_end|><|endoftext|>b"


def test_a_long_run_of_skipped_tokens_does_not_swallow_text(tokenizer: Tokenizer) -> None:
    ids = [*tokenizer.encode("a"), *[token_id(tokenizer, "<|im_end|>")] * 100, *tokenizer.encode("b")]
    assert "".join(stream(tokenizer, ids)) == "ab"


# --- stop strings; which one ends an answer is tested in test_stop_strings.py


@settings(max_examples=200, deadline=None)
@given(
    ids=st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=30),
    data=st.data(),
    keeps=st.booleans(),
)
def test_a_stop_string_anywhere_in_the_text_ends_it(
    tokenizer: Tokenizer, ids: list[int], data: st.DataObject, keeps: bool
) -> None:
    whole = tokenizer.decode(ids, skip_special_tokens=True)
    start = data.draw(st.integers(0, max(0, len(whole) - 1)))
    stop = whole[start : start + data.draw(st.integers(1, 4))] or "zz"
    text = "".join(stream(tokenizer, ids, stop=stop, include_stop_str_in_output=keeps))
    head, found, _ = whole.partition(stop)
    assert text == (head + found if keeps else head)


def test_held_back_text_comes_at_the_end(tokenizer: Tokenizer) -> None:
    pieces = stream(tokenizer, tokenizer.encode("the EN"), stop="END")
    assert "".join(pieces[:-1]) == "the "
    assert pieces[-1] == "EN"


def test_a_stop_string_before_an_unfinished_character_is_found_at_the_end(tokenizer: Tokenizer) -> None:
    smile = tokenizer.encode("🙂")
    detokenizer = Detokenizer(tokenizer, PROMPT, SamplingParams(stop="b\ufffd"))
    for each in [*tokenizer.encode("ab"), *smile[:-1]]:
        assert detokenizer.add(each).stop is None
    assert detokenizer.finish() == ("", "b\ufffd")


def test_a_stop_string_may_be_a_special_tokens_text(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_end|>b")
    assert "".join(stream(tokenizer, ids, stop="<|im_end|>", skip_special_tokens=False)) == "a"
    assert "".join(stream(tokenizer, ids, stop="<|im_end|>")) == "ab", "skipped tokens have no text"


def test_stop_strings_do_not_end_an_answer_before_min_tokens(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("xxxx")
    texts = {n: "".join(stream(tokenizer, ids, stop="x", min_tokens=n)) for n in range(len(ids) + 1)}
    assert texts == {n: "x" * max(0, n - 1) for n in range(len(ids) + 1)}


def test_a_stop_string_does_not_begin_in_the_prompt(tokenizer: Tokenizer) -> None:
    assert "".join(stream(tokenizer, tokenizer.encode("D"), tokenizer.encode("say EN"), stop="END")) == "D"


def test_some_special_tokens_are_shown_and_the_others_are_not(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a<|im_start|>b<|im_end|> é<|im_start|>")
    assert "".join(stream(tokenizer, ids, shown_special_tokens=("<|im_start|>", "no token"))) == (
        "a<|im_start|>b é<|im_start|>"
    )
    whole = "".join(stream(tokenizer, ids, shown_special_tokens=("<|im_start|>",), skip_special_tokens=False))
    assert whole == "a<|im_start|>b<|im_end|> é<|im_start|>"

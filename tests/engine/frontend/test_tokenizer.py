from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from transformers import AutoTokenizer

from chiasm.engine.frontend.tokenizer import Tokenizer, load_tokenizer
from chiasm.errors import UserError
from tests.checkpoints.common import SPECIAL_TOKENS, edit_json, make_tokenizer, save_tokenizer
from tests.engine.frontend.support import refused

PAD, IM_END = 400, 402  # the vocabulary has 400 entries, special tokens follow

TEXTS = (
    "",
    " ",
    "What do you see in this image?",
    "schöne Grüße aus Zürich! 一张图片胜过千言万语。 Привет, мир! 🙂🚀 👩‍👩‍👧",
    "e\u0301 is normalised to \u00e9",
    "  leading, trailing \n\n\t and \r\n inner space  ",
    "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    "a<|image_pad|>b <|not_special|> <|im_end|",
    "\x00\x07\u200b\ufeff\ufdd0\U0010ffff",
)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_hugging_faces(tokenizer: Tokenizer, hf: Any, text: str) -> None:
    ids = tokenizer.encode(text)
    assert ids == hf(text, add_special_tokens=False).input_ids
    assert tokenizer.decode(ids, skip_special_tokens=False) == hf.decode(ids, skip_special_tokens=False)
    assert tokenizer.decode(ids, skip_special_tokens=True) == hf.decode(ids, skip_special_tokens=True)


@settings(max_examples=200, deadline=None)
@given(pieces=st.lists(st.one_of(st.text(max_size=5), st.sampled_from(SPECIAL_TOKENS)), max_size=10))
def test_literal_ids_are_never_special(tokenizer: Tokenizer, pieces: list[str]) -> None:
    text = "".join(pieces)
    ids = tokenizer.encode_literal(text)
    assert not tokenizer.special_ids.intersection(ids)
    # The characters are all there; NFC is this tokenizer's own doing.
    assert tokenizer.decode(ids, skip_special_tokens=True) == tokenizer.decode(
        tokenizer.encode_literal(tokenizer.decode(ids, skip_special_tokens=True)), skip_special_tokens=True
    )
    assert tokenizer.encode("<|im_end|>") == [IM_END], "literal encoding left a trace"


def test_literal_text_is_the_same_text(tokenizer: Tokenizer) -> None:
    text = "see <|im_end|> and <|image_pad|>"
    assert tokenizer.decode(tokenizer.encode_literal(text), skip_special_tokens=True) == text


def test_text_without_special_tokens_is_the_same_either_way(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode_literal(TEXTS[3]) == tokenizer.encode(TEXTS[3])


def test_a_special_token_that_has_no_other_spelling_is_refused() -> None:
    # Every character of it is unknown but as part of the whole: as in vocabularies that hold their control tokens.
    fast = make_tokenizer()
    raw = json.loads(fast.to_str())
    raw["model"]["vocab"]["A"] = raw["model"]["vocab"].pop("A")
    raw["added_tokens"].append({**raw["added_tokens"][0], "id": raw["model"]["vocab"]["A"], "content": "A"})
    raw["added_tokens"].sort(key=lambda token: token["id"])
    tokenizer = Tokenizer(FastTokenizer.from_str(json.dumps(raw)))
    with refused(None, "'A'"):
        tokenizer.encode_literal("A")


def test_vocabulary_size_and_special_tokens(tokenizer: Tokenizer, hf: Any) -> None:
    assert tokenizer.vocab_size == len(hf) == max(hf.get_vocab().values()) + 1
    assert set(tokenizer.special_texts) == set(SPECIAL_TOKENS)
    assert tokenizer.special_ids == set(hf.convert_tokens_to_ids(list(SPECIAL_TOKENS)))


def test_vocabulary_size_counts_gaps() -> None:
    fast = make_tokenizer()
    raw = json.loads(fast.to_str())
    last = max(raw["model"]["vocab"], key=raw["model"]["vocab"].get)
    raw["model"]["vocab"][last] = 1000
    assert Tokenizer(FastTokenizer.from_str(json.dumps(raw))).vocab_size == 1001


def test_token_text_shows_special_tokens_and_halves_of_characters(tokenizer: Tokenizer) -> None:
    assert tokenizer.token_text(IM_END) == "<|im_end|>"
    assert tokenizer.token_text(tokenizer.encode("😀")[0]) == "\ufffd"


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with refused(None, "Unicode"):
        tokenizer.encode("a\ud800b")
    with refused(None, "Unicode"):
        tokenizer.encode_literal("a\ud800b")


@pytest.fixture
def own_folder(text_folder: Path, tmp_path: Path) -> Path:
    """Text files that a test may change."""
    return Path(shutil.copytree(text_folder, tmp_path / "own"))


def test_saved_truncation_and_padding_are_taken_off(own_folder: Path) -> None:
    fast = FastTokenizer.from_file(str(own_folder / "tokenizer.json"))
    fast.enable_truncation(4)
    fast.enable_padding(length=32)
    fast.save(str(own_folder / "tokenizer.json"))
    loaded = load_tokenizer(own_folder)
    assert len(loaded.encode("Hello, world! " * 10)) > 32
    assert len(loaded.encode("a")) == 1


def test_tokens_that_the_settings_name_special_are_special(own_folder: Path, tokenizer: Tokenizer) -> None:
    """As with transformers; some converted checkpoints have them as ordinary added tokens in ``tokenizer.json``."""

    def make_ordinary(raw: dict[str, Any]) -> None:
        for token in raw["added_tokens"]:
            token["special"] = False

    edit_json(own_folder / "tokenizer.json", make_ordinary)
    loaded = load_tokenizer(own_folder)
    assert loaded.special_ids == tokenizer.special_ids
    assert loaded.vocab_size == tokenizer.vocab_size
    assert loaded.encode_literal("<|im_end|>") == tokenizer.encode_literal("<|im_end|>")

    edit_json(own_folder / "tokenizer_config.json", lambda raw: raw.pop("added_tokens_decoder"))
    assert load_tokenizer(own_folder).special_ids == {PAD, IM_END}  # pad_token and eos_token


def test_the_older_format_without_tokenizer_json(own_folder: Path, tokenizer: Tokenizer) -> None:
    FastTokenizer.from_file(str(own_folder / "tokenizer.json")).model.save(str(own_folder))
    (own_folder / "tokenizer.json").unlink()
    assert {"vocab.json", "merges.txt"} <= {path.name for path in own_folder.iterdir()}
    loaded = load_tokenizer(own_folder)
    assert loaded.special_ids == tokenizer.special_ids
    for text in TEXTS:
        assert loaded.encode(text) == tokenizer.encode(text), text
        assert loaded.encode_literal(text) == tokenizer.encode_literal(text), text


@pytest.mark.parametrize("content", ["", "{", "[]", '{"model": {"type": "NoSuchModel"}}', "\x00\x01"])
def test_a_broken_tokenizer_is_a_user_error(own_folder: Path, content: str) -> None:
    (own_folder / "tokenizer.json").write_text(content, encoding="utf-8")
    with refused("model", "tokenizer can't be read"):
        load_tokenizer(own_folder)


def test_no_tokenizer_at_all_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer"):
        load_tokenizer(tmp_path)


def test_code_of_a_checkpoint_is_not_run(own_folder: Path) -> None:
    (own_folder / "tokenizer.json").unlink()
    (own_folder / "canary.py").write_text(
        f"from pathlib import Path\nPath({str(own_folder / 'sang')!r}).touch()\nclass CanaryTokenizer: pass\n",
        encoding="utf-8",
    )

    def name_code(raw: dict[str, Any]) -> None:
        raw["auto_map"] = {"AutoTokenizer": ["canary.CanaryTokenizer", None]}
        raw["tokenizer_class"] = "CanaryTokenizer"

    edit_json(own_folder / "tokenizer_config.json", name_code)
    with refused("model"):
        load_tokenizer(own_folder)
    assert not (own_folder / "sang").exists()


@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize(
    "named_in", ["", "extra_special_tokens", "additional_special_tokens", "added_tokens_decoder"]
)
def test_tags_are_special_where_they_are_to_transformers(tmp_path: Path, in_file: bool, named_in: str) -> None:
    """GLM-4.1V's <answer>: it depends on the tokenizer's flags whether an answer shows it."""
    fast = make_tokenizer()
    fast.add_tokens([AddedToken("<answer>", special=in_file, normalized=False)])
    save_tokenizer(tmp_path, fast, kind="PreTrainedTokenizerFast")

    def name(settings: dict[str, Any]) -> None:
        if named_in == "added_tokens_decoder":
            flags = dict.fromkeys(("lstrip", "rstrip", "normalized", "single_word"), False)
            settings[named_in][str(fast.token_to_id("<answer>"))] = {"content": "<answer>", "special": True, **flags}
        elif named_in:
            settings[named_in] = ["<answer>"]

    edit_json(tmp_path / "tokenizer_config.json", name)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    ids = ours.encode("so <answer>4")
    assert ids == theirs("so <answer>4")["input_ids"]
    shown = ours.decode(ids, skip_special_tokens=True)
    assert shown == theirs.decode(ids, skip_special_tokens=True)
    assert ("<answer>" in shown) == (not in_file and named_in != "added_tokens_decoder")

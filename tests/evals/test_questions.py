"""What lm-eval asks: where pictures stand, and how to decode."""

from __future__ import annotations

from typing import Any

import pytest
from lm_eval.models.utils import normalize_gen_kwargs

from chiasm.errors import UserError
from chiasm.evals.questions import Question, decoding_fields, pack_conversation, read_question


def parts(question: Question) -> list[list[Any]]:
    return [[part.get("text", part.get("image")) for part in message["content"]] for message in question.messages]


def asked(*contents: str, pictures: tuple[str, ...], most: int = 9) -> list[list[Any]]:
    roles = ["system", *["user", "assistant"] * 2][-len(contents) :] if len(contents) > 1 else ["user"]
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=True)]
    return parts(read_question(pack_conversation(messages, is_open=False), pictures, most))


def test_pictures_stand_in_their_places() -> None:
    assert asked("a <image> b <image>", pictures=("P", "Q")) == [["a ", "P", " b ", "Q"]]
    assert asked("a <image>", pictures=("P", "Q")) == [["P", "a ", "Q"]]
    assert asked("a <image> b <image>", pictures=("P", "Q"), most=1) == [["a ", "P", " b "]]


def test_a_plain_prompt_is_a_conversation_only_with_pictures() -> None:
    assert read_question("1 + 1 =", (), 9) == Question(text="1 + 1 =")
    assert read_question('{"a": 1}', (), 9) == Question(text='{"a": 1}')
    assert parts(read_question("Which? <image>", ("P",), 9)) == [["Which? ", "P"]]


def test_a_text_without_pictures_keeps_what_looks_like_a_place() -> None:
    context = pack_conversation([{"role": "user", "content": "What is <image> in HTML?"}], is_open=True)
    question = read_question(context, (), 9)
    assert question.messages[0]["content"] == "What is <image> in HTML?"
    assert question.is_open


def test_more_places_than_pictures_are_refused() -> None:
    with pytest.raises(UserError, match="2 <image> and 1 pictures"):
        read_question("<image> Red <image>", ("P",), 9)


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"until": ["\n", ""], "max_gen_toks": 8, "do_sample": False, "temperature": 0.7},
         {"temperature": 0.0, "max_tokens": 8, "stop": ["\n"]}),
        ({"temperature": 0.7, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9, "max_tokens": 256}),
        ({"do_sample": True, "max_new_tokens": 5}, {"temperature": 1.0, "max_tokens": 5}),
        ({"until": "x", "top_k": 3}, {"temperature": 0.0, "top_k": 3, "max_tokens": 256, "stop": ["x"]}),
    ],
)  # fmt: skip
def test_decoding_is_lm_evals(settings: dict[str, Any], fields: dict[str, Any]) -> None:
    assert decoding_fields(normalize_gen_kwargs(settings)) == fields

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from chiasm.errors import UserError
from chiasm.schema.sampling import (
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_BIASED_TOKENS,
    MAX_LOGPROBS,
    MAX_N,
    MAX_SEED,
    MAX_STOP_STRINGS,
    SamplingParams,
    check_token_ids,
)
from chiasm.schema.structured import StructuredOutputs, Thinking

NO_NUMBERS = (math.nan, math.inf, -math.inf)

GOOD: dict[str, tuple[Any, ...]] = {
    "n": (1, MAX_N),
    "presence_penalty": (-2, -0.5, 0, 2.0),
    "frequency_penalty": (-2, -0.5, 0, 2.0),
    "repetition_penalty": (1e-6, 0.5, 1, 10.0),
    "temperature": (0, 1e-9, 0.01, 1, 2.0),
    "top_p": (0, 1e-9, 0.5, 1, 1.0),
    "top_k": (-1, 0, 1, 10**9),
    "min_p": (0, 0.5, 1.0),
    "seed": (None, 0, -MAX_SEED, MAX_SEED),
    "stop": (None, "x", (), ["x"], ("x",) * MAX_STOP_STRINGS),
    "stop_token_ids": (None, (), [0, 5]),
    "max_tokens": (None, 1, 2**62),
    "min_tokens": (0, 16),
    "logprobs": (None, 0, MAX_LOGPROBS),
    "prompt_logprobs": (None, 0, MAX_LOGPROBS),
    "logit_bias": (None, {}, {5: -100}, {"5": 100, 6: 0.5}, dict.fromkeys(range(MAX_BIASED_TOKENS), 1)),
    "allowed_token_ids": (None, [0], range(MAX_ALLOWED_TOKENS)),
    "bad_words": (None, "x", (), ["x" * MAX_BAD_WORD_LENGTH] * MAX_BAD_WORDS),
}
BAD: dict[str, tuple[Any, ...]] = {
    "n": (0, -1, MAX_N + 1, 10**9),
    "presence_penalty": (-2.01, 2.01, *NO_NUMBERS),
    "frequency_penalty": (-2.01, 2.01, *NO_NUMBERS),
    "repetition_penalty": (0, -1, *NO_NUMBERS),
    "temperature": (-0.01, 2.01, 1e300, *NO_NUMBERS),
    "top_p": (-0.01, 1.01, *NO_NUMBERS),
    "top_k": (-2, -(10**9)),
    "min_p": (-0.01, 1.01, *NO_NUMBERS),
    "seed": (MAX_SEED + 1, -MAX_SEED - 1, 2**64),
    "stop": ("", ["x", ""], ["x"] * (MAX_STOP_STRINGS + 1)),
    "max_tokens": (0, -1),
    "min_tokens": (-1, 17, 10**18),
    "logprobs": (-1, MAX_LOGPROBS + 1),
    "prompt_logprobs": (-1, MAX_LOGPROBS + 1),
    "logit_bias": (
        {5: 100.1}, {5: -1e9}, *({5: value} for value in NO_NUMBERS), {"-1": 5}, {"x": 1}, {"1_0": 1}, {"٣": 1},
        {"": 1}, {"9" * 30: 1}, [5], dict.fromkeys(range(MAX_BIASED_TOKENS + 1), 1),
    ),
    "allowed_token_ids": ([], range(MAX_ALLOWED_TOKENS + 1)),
    "bad_words": ("", ["x", ""], "x" * (MAX_BAD_WORD_LENGTH + 1), ["x"] * (MAX_BAD_WORDS + 1)),
}  # fmt: skip


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in GOOD.items() for value in values])
def test_values_in_range_are_taken(field: str, value: Any) -> None:
    SamplingParams(**{field: value})


@pytest.mark.parametrize(("field", "value"), [(field, value) for field, values in BAD.items() for value in values])
def test_values_out_of_range_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field
    assert caught.value.message.startswith(f"{field} must be")
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("value", ["1", True, 1.5, 2**70, [1]], ids=repr)
@pytest.mark.parametrize("field", ["n", "top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs"])
def test_whole_numbers_are_that_and_no_larger_than_can_be_sent(field: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "x"),
        ("top_p", True),
        ("min_p", 10**400),
        ("ignore_eos", 1),
        ("detokenize", None),
        ("stop", [1]),
        ("stop", "x" * 1001),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", [2**64]),
        ("allowed_token_ids", ["a"]),
        ("allowed_token_ids", [True]),
        ("bad_words", [1]),
        ("logit_bias", {5: "x"}),
        ("logit_bias", {5: True}),
        ("logit_bias", {True: 5}),
        ("logit_bias", {2**70: 5}),
    ],
)
def test_values_of_a_wrong_type_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(UserError) as caught:
        SamplingParams(**{field: value})
    assert caught.value.param == field


def test_what_is_sent_is_read_as_it_was() -> None:
    params = SamplingParams(temperature=np.float32(0.5), top_k=np.int64(3), top_p=1, seed=-5, stop="x",
                            logit_bias={"7": 1, 8: np.float32(0.5)}, allowed_token_ids=range(3), bad_words="a",
                            prompt_logprobs=np.int64(2))  # type: ignore[arg-type]  # fmt: skip
    assert params.logit_bias == {7: 1.0, 8: 0.5}
    assert params.allowed_token_ids == (0, 1, 2)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_a_form_is_read_as_it_was_sent() -> None:
    for form in (
        StructuredOutputs(json={"type": "object"}, param="x", thinking=Thinking(1, 2, is_open=True)),  # type: ignore[arg-type]
        StructuredOutputs(choice=["a"]),  # type: ignore[arg-type]
        StructuredOutputs(json_object=True),
    ):
        params = SamplingParams(structured_outputs=form)
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_a_form_is_no_dict() -> None:
    with pytest.raises(UserError, match="structured_outputs must be StructuredOutputs"):
        SamplingParams(structured_outputs={"regex": "a"})  # type: ignore[arg-type]


def test_every_field_with_a_range_is_in_the_tables() -> None:
    unranged = {
        "ignore_eos",
        "detokenize",
        "skip_special_tokens",
        "shown_special_tokens",
        "include_stop_str_in_output",
        "structured_outputs",
    }
    assert set(GOOD) == set(SamplingParams.__struct_fields__) - unranged
    assert set(BAD) == set(GOOD) - {"stop_token_ids"}, "those depend on the vocabulary"


def test_several_answers_may_be_alike() -> None:
    for fields in ({"temperature": 0}, {"top_p": 0}, {"top_k": 1}):
        assert SamplingParams(n=2, **fields).n == 2


def test_forms_that_users_write_are_normalised() -> None:
    assert SamplingParams(stop="ab").stop == ("ab",)
    assert SamplingParams(stop=["a", "b"]).stop == ("a", "b")  # type: ignore[arg-type]
    assert SamplingParams(stop=None, stop_token_ids=None).stop == ()  # type: ignore[arg-type]
    assert SamplingParams(stop_token_ids=[1, 2]).stop_token_ids == (1, 2)  # type: ignore[arg-type]


@pytest.mark.parametrize(("written", "read"), [(0, 0), (1e-9, 0.01), (0.0099, 0.01), (0.01, 0.01), (0.5, 0.5)])
def test_a_temperature_near_zero_is_not_nearer_than_it_can_be(written: float, read: float) -> None:
    params = SamplingParams(temperature=written)
    assert params.temperature == read
    assert params.is_greedy == (written == 0)


def test_min_tokens_may_not_exceed_max_tokens() -> None:
    assert SamplingParams(max_tokens=None, min_tokens=10**6).min_tokens == 10**6
    with pytest.raises(UserError, match="max_tokens=5"):
        SamplingParams(max_tokens=5, min_tokens=6)


@pytest.mark.parametrize("bad", [-1, 10, 10**12])
def test_token_ids_outside_the_vocabulary_are_refused(bad: int) -> None:
    check_token_ids("stop_token_ids", (0, 9), 10)
    check_token_ids("stop_token_ids", (), 10)
    with pytest.raises(UserError) as caught:
        check_token_ids("stop_token_ids", (0, bad), 10)
    assert caught.value.param == "stop_token_ids"
    assert str(bad) in caught.value.message
    assert "[0, 10)" in caught.value.message


def test_stop_strings_are_looked_for_in_text() -> None:
    assert not SamplingParams(detokenize=False).detokenize
    with pytest.raises(UserError, match="stop must be empty without detokenize"):
        SamplingParams(detokenize=False, stop="x")

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import MinNewTokensLengthLogitsProcessor, RepetitionPenaltyLogitsProcessor

from chiasm.sampling.penalties import apply_biases, apply_penalties, forbid_stop_tokens, has_penalties
from chiasm.sampling.rows import SamplingRow
from chiasm.schema.sampling import SamplingParams

VOCAB_SIZE = 30
tokens = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=12)
prompts = st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=12)


def make_logits(seed: int = 0) -> Tensor:
    return 3 * torch.randn(VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


def said(prompt: list[int], output: list[int], **fields: Any) -> SamplingRow:
    return SamplingRow("", SamplingParams(max_tokens=None, **fields), [*prompt, *output], len(prompt))


def penalised(prompt: list[int], output: list[int], **fields: Any) -> Tensor:
    logits = make_logits()
    apply_penalties(logits[None], [said(prompt, output, **fields)])
    return logits


def test_placeholders_that_no_answer_can_have_are_passed_over() -> None:
    beyond = penalised([3, VOCAB_SIZE], [5], repetition_penalty=2.0)
    assert torch.equal(beyond, penalised([3], [5], repetition_penalty=2.0))
    assert torch.equal(penalised([VOCAB_SIZE], [], repetition_penalty=2.0), make_logits())


@settings(max_examples=100, deadline=None)
@given(prompt=prompts, output=tokens, penalty=st.floats(0.1, 3.0))
def test_the_repetition_penalty_equals_that_of_transformers(
    prompt: list[int], output: list[int], penalty: float
) -> None:
    expected = RepetitionPenaltyLogitsProcessor(penalty)(torch.tensor([[*prompt, *output]]), make_logits()[None])[0]
    torch.testing.assert_close(penalised(prompt, output, repetition_penalty=penalty), expected)


@settings(max_examples=100, deadline=None)
@given(prompt=prompts, output=tokens, frequency=st.floats(-2, 2), presence=st.floats(-2, 2))
def test_frequency_and_presence_penalties_are_openais(
    prompt: list[int], output: list[int], frequency: float, presence: float
) -> None:
    """https://platform.openai.com/docs/advanced-usage: mu[j] - c[j] * frequency - (c[j] > 0) * presence."""
    expected = make_logits()
    for token_id, count in Counter(output).items():
        expected[token_id] = expected[token_id] - count * frequency - presence
    found = penalised(prompt, output, frequency_penalty=frequency, presence_penalty=presence)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


def test_all_together() -> None:
    fields = {"repetition_penalty": 1.5, "frequency_penalty": 0.5, "presence_penalty": 0.25}
    found = penalised([1, 2], [2, 3, 3], **fields)
    expected = make_logits()
    for token_id in (1, 2, 3):
        expected[token_id] = expected[token_id] * (1 / 1.5 if expected[token_id] > 0 else 1.5)
    expected[2] -= 0.5 + 0.25
    expected[3] -= 2 * 0.5 + 0.25
    torch.testing.assert_close(found, expected)


def test_masked_tokens_stay_masked() -> None:
    logits = torch.tensor([-torch.inf, 1.0])
    row = said([0, 1], [0], repetition_penalty=2.0, frequency_penalty=-2.0, presence_penalty=-2.0)
    apply_penalties(logits[None], [row])
    assert logits.tolist() == [-torch.inf, 0.5]


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({}, False),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": -0.1}, True),
        ({"repetition_penalty": 0.9}, True),
    ],
)
def test_whether_there_is_anything_to_do(fields: dict[str, Any], changes: bool) -> None:
    assert has_penalties(SamplingParams(**fields)) is changes
    assert torch.equal(penalised([1], [2], **fields), make_logits()) is not changes


def test_rows_of_a_batch_do_not_mix() -> None:
    rows = [
        said([1, 2], [2], repetition_penalty=1.5),
        said([9], [4, 4, 5]),
        said([7], [3, 3], frequency_penalty=0.5, min_tokens=9),
        said([1], [1], repetition_penalty=0.5, presence_penalty=1.0, min_tokens=2, stop_token_ids=(8,)),
    ]
    together = torch.stack([make_logits(seed) for seed in range(len(rows))])
    alone = together.clone()
    untouched = together[1].clone()
    apply_penalties(together, rows)
    forbid_stop_tokens(together, rows, (3, 5))
    for index, row in enumerate(rows):
        apply_penalties(alone[index : index + 1], [row])
        forbid_stop_tokens(alone[index : index + 1], [row], (3, 5))
    assert torch.equal(together, alone)
    assert torch.equal(together[1], untouched)
    assert [(line == -torch.inf).nonzero()[:, 0].tolist() for line in together] == [[], [], [3, 5], [3, 5, 8]]


# --- min_tokens


def forbidden(num_output: int, eos: tuple[int, ...] = (3, 5), **fields: Any) -> list[int]:
    """The tokens that are masked."""
    logits = make_logits()
    forbid_stop_tokens(logits[None], [said([1], [0] * num_output, **fields)], eos)
    return (logits == -torch.inf).nonzero()[:, 0].tolist()


def test_no_stop_token_before_min_tokens() -> None:
    fields = {"min_tokens": 2, "stop_token_ids": (7, 3)}
    assert [forbidden(n, **fields) for n in range(4)] == [[3, 5, 7], [3, 5, 7], [], []]
    assert forbidden(0, stop_token_ids=(7,)) == []


def test_min_tokens_equals_that_of_transformers() -> None:
    processor = MinNewTokensLengthLogitsProcessor(4, 2, [3, 5], device="cpu")
    for num_output in range(4):
        scores = processor(torch.zeros(1, 4 + num_output, dtype=torch.long), make_logits()[None])[0]
        masked = (scores == -torch.inf).nonzero()[:, 0].tolist()
        assert forbidden(num_output, min_tokens=2) == masked


def test_an_eos_token_that_is_ignored_is_not_masked() -> None:
    assert forbidden(0, min_tokens=1, ignore_eos=True, stop_token_ids=(7,)) == [7]
    assert forbidden(0, min_tokens=1, ignore_eos=True) == []
    assert forbidden(0, eos=(), min_tokens=1) == []


def test_biases_are_added_to_their_own_rows() -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    biases: list[dict[int, float]] = [{}, {4: -100, 7: 0.5}, {7: 100}]
    apply_biases(logits, [said([4], [], logit_bias=bias) for bias in biases])
    expected = torch.zeros(3, VOCAB_SIZE)
    expected[1, 4], expected[1, 7], expected[2, 7] = -100, 0.5, 100
    assert torch.equal(logits, expected)

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.sampling.masks import forbid_banned, forbid_others, mask_of
from chiasm.sampling.rows import SamplingRow
from chiasm.sampling.sampler import sample
from chiasm.schema.sampling import SamplingParams

VOCAB_SIZE = 45  # no whole number of bytes


def wide_mask(tokens: set[int]) -> bytes:
    """With more bits than tokens, as grammars give them."""
    bits = [token in tokens for token in range(64)]
    return np.packbits(np.array(bits), bitorder="little").tobytes()


def test_only_allowed_tokens_stay_and_other_rows_are_untouched() -> None:
    logits = torch.randn(4, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    forbid_others(logits, {1: wide_mask({0, 7, 8, 44}), 3: wide_mask({31, 50})})
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    for row, allowed in ((1, [0, 7, 8, 44]), (3, [31])):
        assert torch.isfinite(logits[row]).nonzero()[:, 0].tolist() == allowed
        assert torch.equal(logits[row, allowed], before[row, allowed])


def test_sampling_obeys_whatever_else_is_asked_for() -> None:
    rows = [
        SamplingRow(str(i), SamplingParams(max_tokens=None, seed=i, **fields), [1, 2, 3], 2)
        for i, fields in enumerate(({"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.1}, {"repetition_penalty": 2.0}))
    ]
    allowed = {3, 17}
    for seed in range(20):
        logits = torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
        sampled = sample(logits, rows, (0,), dict.fromkeys(range(len(rows)), wide_mask(allowed)))
        assert {token.token_id for token in sampled} <= allowed


def test_log_probabilities_are_the_models_own() -> None:
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    row = SamplingRow("a", SamplingParams(max_tokens=None, logprobs=3, temperature=0.0), [1], 1)
    expected = logits.log_softmax(-1)[0]
    (token,) = sample(logits.clone(), [row], (0,), {0: wide_mask({5})})
    assert token.token_id == 5
    assert token.logprob is not None
    assert token.logprob.logprob == float(expected[5])
    assert [i for i, _ in token.logprob.top] == expected.topk(3).indices.tolist()


def test_a_mask_may_end_before_the_vocabulary_does() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    forbid_others(logits, {0: mask_of([9, 3])})
    assert torch.isfinite(logits[0]).nonzero()[:, 0].tolist() == [3, 9]


def row_of(output: list[int], **fields: Any) -> SamplingRow:
    """A sequence with a prompt of 8, 9."""
    own = {name: fields.pop(name) for name in ("banned", "allowed") if name in fields}
    params = SamplingParams(**{"max_tokens": None, "temperature": 0.0, **fields})
    return SamplingRow("a", params, [8, 9, *output], 2, **own)


BANNED = ((5,), (1, 2), (9, 4), (1, 1, 3), (1, 3))


@pytest.mark.parametrize(
    ("output", "forbidden"),
    [
        ([], {5}),  # 9, 4 would begin in the prompt
        ([1], {5, 2, 3}),
        ([1, 1], {5, 2, 3}),
        ([2, 1, 1, 1], {5, 2, 3}),
        ([9], {5, 4}),
        ([1, 7], {5}),
    ],
)
def test_what_would_complete_a_banned_sequence_is_forbidden(output: list[int], forbidden: set[int]) -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    forbid_banned(logits, [row_of(output), row_of(output, banned=BANNED)])
    assert torch.isneginf(logits[1]).nonzero()[:, 0].tolist() == sorted(forbidden)
    assert not logits[0].any()


@settings(max_examples=60, deadline=None)
@given(
    banned=st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=4),
    seed=st.integers(0, 1000),
)
def test_no_answer_has_a_banned_sequence(banned: list[list[int]], seed: int) -> None:
    output: list[int] = []
    for _ in range(30):
        logits = torch.randn(1, 5, generator=torch.Generator().manual_seed(seed + len(output)))
        (token,) = sample(logits, [row_of(output, temperature=1.0, seed=seed, banned=banned)], ())
        assert not token.is_stuck, "token 4 is in none"
        output.append(token.token_id)
    for sequence in banned:
        assert not any(output[i : i + len(sequence)] == sequence for i in range(len(output)))


STUCK: dict[str, SamplingRow] = {
    "allowed and banned": row_of([], allowed=mask_of([5]), banned=((5,),)),
    "allowed and min_tokens": row_of([], allowed=mask_of([0]), min_tokens=2),
    "allowed and drawn": row_of(
        [], allowed=mask_of([5]), banned=((5,),), temperature=1.0, seed=1, top_p=0.5, min_p=0.1
    ),
}


@pytest.mark.parametrize("name", list(STUCK))
def test_a_row_to_which_nothing_is_left_is_told_and_takes_no_other_along(name: str) -> None:
    others = [row_of([]), row_of([], allowed=mask_of([7])), row_of([], min_tokens=2)]
    sampled = sample(torch.zeros(4, VOCAB_SIZE), [*others, STUCK[name]], (0,))
    assert [token.is_stuck for token in sampled] == [False, False, False, True]
    assert [token.token_id for token in sampled[:3]] == [0, 7, 1]


def test_a_form_and_the_tokens_that_are_allowed_bind_both() -> None:
    rows = [row_of([], allowed=mask_of([3, 5])), row_of([], allowed=mask_of([3, 5]))]
    sampled = sample(torch.zeros(2, VOCAB_SIZE), rows, (0,), {0: wide_mask({5, 6}), 1: wide_mask({6})})
    assert (sampled[0].token_id, sampled[0].is_stuck, sampled[1].is_stuck) == (5, False, True)

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch import Tensor

from chiasm.sampling.rows import SamplingRow
from chiasm.sampling.sampler import sample
from chiasm.schema.plan import SampledToken
from chiasm.schema.sampling import SamplingParams
from tests.rounding import assert_equal_but_for_rounding

VOCAB_SIZE = 40
EOS = (2,)


def make_logits(num_rows: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


def make_row(name: str, num_output: int = 0, **fields: Any) -> SamplingRow:
    """A sequence with a prompt of 3 tokens and some output."""
    output = [(7 * i + 1) % VOCAB_SIZE for i in range(num_output)]
    return SamplingRow(name, SamplingParams(max_tokens=None, **fields), [4, 5, 6, *output], 3)


def make_rows() -> list[SamplingRow]:
    """Sequences that differ in every way that matters."""
    return [
        make_row("greedy", temperature=0.0),
        make_row("plain", seed=1),
        make_row("same again", seed=1),
        make_row("later", seed=1, num_output=5),
        make_row("cut", seed=2, top_p=0.8, logprobs=3),
        make_row("cut more", seed=3, top_k=3, min_p=0.1, temperature=1.5),
        make_row("penalised", seed=4, num_output=6, frequency_penalty=1.0, repetition_penalty=1.2, logprobs=0),
        make_row("greedy, penalised", temperature=0.0, num_output=6, presence_penalty=2.0),
        make_row("short", seed=5, min_tokens=3),
        make_row("hot", seed=6, temperature=2.0),
    ]


def test_tokens_come_back_in_order_under_their_names() -> None:
    rows = make_rows()
    sampled = sample(make_logits(len(rows)), rows, EOS)
    assert [token.request_id for token in sampled] == [row.request_id for row in rows]
    assert all(0 <= token.token_id < VOCAB_SIZE for token in sampled)
    assert [token.request_id for token in sampled if token.logprob is not None] == ["cut", "penalised"]


def test_greedy_takes_the_likeliest() -> None:
    logits = make_logits(20)
    sampled = sample(logits.clone(), [make_row(str(i), temperature=0.0) for i in range(20)], EOS)
    assert [token.token_id for token in sampled] == logits.argmax(dim=-1).tolist()


def test_tokens_do_not_depend_on_the_batch() -> None:
    rows = make_rows()
    logits = make_logits(len(rows))
    together = sample(logits.clone(), rows, EOS)
    alone = [sample(logits[i : i + 1].clone(), [row], EOS)[0] for i, row in enumerate(rows)]
    assert alone == together
    shuffler = random.Random(0)
    for _ in range(10):
        order = shuffler.sample(range(len(rows)), shuffler.randint(1, len(rows)))
        some = sample(logits[order].clone(), [rows[i] for i in order], EOS)
        assert some == [together[i] for i in order]


def test_the_same_seed_repeats_itself_and_another_does_not() -> None:
    def answer(seed: int) -> list[int]:
        ids = [4, 5, 6]
        params = SamplingParams(seed=seed, max_tokens=None)
        for _ in range(30):
            (token,) = sample(make_logits(1) / 5, [SamplingRow("a", params, ids, 3)], EOS)
            ids.append(token.token_id)
        return ids[3:]

    assert answer(11) == answer(11)
    assert len({tuple(answer(seed)) for seed in range(10)}) == 10
    assert len(set(answer(11))) > 5, "each step draws anew"


def test_penalties_decide_the_token() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[:, 1] = 1.0  # output tokens are 1, 8, ...
    logits[:, 9] = 0.5
    rows = [make_row("a", 1, temperature=0.0), make_row("b", 1, temperature=0.0, presence_penalty=0.6)]
    assert [token.token_id for token in sample(logits, rows, EOS)] == [1, 9]


def test_the_frequency_penalty_does_not_count_the_prompt_and_the_repetition_penalty_does() -> None:
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[:, 5] = 1.0  # a token of the prompt
    logits[:, 9] = 0.9
    rows = [
        make_row("a", temperature=0.0, frequency_penalty=2.0),
        make_row("b", temperature=0.0, repetition_penalty=2.0),
    ]
    assert [token.token_id for token in sample(logits, rows, EOS)] == [5, 9]


def test_min_tokens_decides_the_token() -> None:
    logits = torch.zeros(3, VOCAB_SIZE)
    logits[:, 2] = 5.0
    logits[:, 9] = 1.0
    rows = [
        make_row("a", 1, temperature=0.0, min_tokens=2),
        make_row("b", 2, temperature=0.0, min_tokens=2),
        make_row("c", 1, temperature=0.0, min_tokens=2, ignore_eos=True),
    ]
    assert [token.token_id for token in sample(logits, rows, EOS)] == [9, 2, 2]


# --- logprobs


def logprob_of(sampled: SampledToken) -> Any:
    assert sampled.logprob is not None
    return sampled.logprob


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"seed": 1},
        {"seed": 1, "temperature": 0.2, "top_k": 2},
        {"seed": 1, "frequency_penalty": 2.0, "repetition_penalty": 2.0, "num_output": 6},
        {"seed": 1, "min_tokens": 10},
    ],
    ids=str,
)
def test_logprobs_are_the_models_own(fields: dict[str, Any]) -> None:
    logits = make_logits(1)
    expected = logits[0].log_softmax(dim=-1)
    (token,) = sample(logits.clone(), [make_row("a", logprobs=5, **fields)], EOS)
    entry = logprob_of(token)
    assert entry.rank == 1 + int((expected > expected[token.token_id]).sum())
    best = expected.sort(descending=True)
    assert [token_id for token_id, _ in entry.top] == best.indices[:5].tolist()
    found = torch.tensor([entry.logprob, *(logprob for _, logprob in entry.top)])
    assert_equal_but_for_rounding(found, torch.cat([expected[[token.token_id]], best.values[:5]]))


def test_the_rank_of_a_token_that_is_not_the_likeliest() -> None:
    logits = torch.arange(VOCAB_SIZE, dtype=torch.float32)[None]
    row = make_row("a", temperature=0.0, min_tokens=1, stop_token_ids=(VOCAB_SIZE - 1, VOCAB_SIZE - 2), logprobs=1)
    (token,) = sample(logits, [row], EOS)
    assert (token.token_id, logprob_of(token).rank) == (VOCAB_SIZE - 3, 3)
    assert [token_id for token_id, _ in logprob_of(token).top] == [VOCAB_SIZE - 1]


def test_tokens_that_tie_share_a_rank() -> None:
    (token,) = sample(torch.zeros(1, VOCAB_SIZE), [make_row("a", seed=1, logprobs=0)], EOS)
    assert logprob_of(token).rank == 1
    assert logprob_of(token).logprob == pytest.approx(-torch.tensor(VOCAB_SIZE).log().item())


@pytest.mark.parametrize(("asked", "given"), [(0, 0), (1, 1), (20, 20)])
def test_as_many_of_the_likeliest_as_asked_for(asked: int, given: int) -> None:
    (token,) = sample(make_logits(1), [make_row("a", seed=1, logprobs=asked)], EOS)
    assert len(logprob_of(token).top) == given


def test_no_more_of_the_likeliest_than_there_are() -> None:
    (token,) = sample(torch.zeros(1, 4), [SamplingRow("a", SamplingParams(logprobs=20), [1], 1)], EOS)
    assert len(logprob_of(token).top) == 4


def test_a_sequence_without_seed_draws_as_with_zero() -> None:
    rows = [make_row("a"), make_row("b", seed=0)]
    first, second = sample(make_logits(1).repeat(2, 1), rows, EOS)
    assert first.token_id == second.token_id

"""Shapes: B is rows, V the size of the vocabulary."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from chiasm.sampling import draw as module
from chiasm.sampling.draw import draw, probabilities, uniform
from chiasm.schema.sampling import MAX_SEED, SamplingParams

SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.01},
    {"temperature": 0.3},
    {"temperature": 2.0},
    {"top_k": 1},
    {"top_k": 7},
    {"top_k": 10_000},
    {"top_k": -1},
    {"top_p": 0.9},
    {"top_p": 0.5, "temperature": 1.7},
    {"top_p": 1e-9},
    {"top_p": 0.999999},
    {"min_p": 0.1},
    {"min_p": 1.0},
    {"min_p": 1e-9},
    {"top_k": 30, "top_p": 0.8},
    {"top_k": 2000, "top_p": 0.99, "min_p": 0.001, "temperature": 1.3},
    {"top_k": 5, "top_p": 0.7, "min_p": 0.3, "temperature": 0.7},
)


def make_logits(num_rows: int, vocab_size: int, *, seed: int = 0, scale: float = 3.0) -> Tensor:
    """Random logits [B, V] without ties."""
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(num_rows, vocab_size, generator=generator)


def reference(logits: Tensor, params: SamplingParams) -> Tensor:
    """The distributions by transformers' warpers, in the order in which ``generate`` applies them."""
    ids = torch.zeros(len(logits), 1, dtype=torch.long)
    scores = TemperatureLogitsWarper(params.temperature)(ids, logits.double())
    if params.top_k > 0:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p > 0:
        scores = MinPLogitsWarper(params.min_p)(ids, scores)
    return scores.softmax(dim=-1)


# --- the distribution


@pytest.mark.parametrize("fields", SETTINGS, ids=str)
@pytest.mark.parametrize("vocab_size", [50, 5000])
def test_distributions_equal_those_of_transformers(fields: dict[str, Any], vocab_size: int) -> None:
    params = SamplingParams(**fields)
    logits = make_logits(6, vocab_size)
    ours, theirs = probabilities(logits, [params] * 6), reference(logits, params)
    assert torch.equal(ours > 0, theirs > 0), "other tokens are left"
    # An exponent is off by half an epsilon of its size.
    most = 2 * torch.finfo(torch.float32).eps * (logits / params.temperature).abs().max().item()
    torch.testing.assert_close(ours, theirs, rtol=most, atol=torch.finfo(torch.float64).tiny)


@settings(max_examples=200, deadline=None)
@given(
    top_k=st.integers(0, 12),
    top_p=st.floats(0.01, 1.0),
    min_p=st.floats(0.0, 1.0),
    temperature=st.floats(0.05, 2.0),
    seed=st.integers(0, 1000),
)
def test_any_settings_leave_what_transformers_leaves(
    top_k: int, top_p: float, min_p: float, temperature: float, seed: int
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p, temperature=temperature)
    logits = make_logits(1, 10, seed=seed, scale=1.0)
    ours, theirs = probabilities(logits, [params]), reference(logits, params)
    different = (ours > 0) != (theirs > 0)
    # Rounding may decide otherwise for a token that lies exactly on a border, which is then one token.
    assert int(different.sum()) == 0 or (int(different.sum()) == 1 and is_on_border(logits, params))


def is_on_border(logits: Tensor, params: SamplingParams) -> bool:
    """Whether a slightly other top_p or min_p leaves another number of tokens."""
    counts = set()
    for factor in (1 - 1e-5, 1 + 1e-5):
        top_p, min_p = min(1.0, params.top_p * factor), min(1.0, params.min_p * factor)
        moved = SamplingParams(top_k=params.top_k, top_p=top_p, min_p=min_p, temperature=params.temperature)
        counts.add(int((reference(logits, moved) > 0).sum()))
    return len(counts) > 1


@pytest.mark.parametrize("beside", [{}, {"top_k": 5}, {"min_p": 0.5}, {"temperature": 2.0}])
def test_a_top_p_of_zero_leaves_the_likeliest_token(beside: dict[str, Any]) -> None:
    logits = make_logits(6, 5000)
    logits[0, 7] = logits[0, 9] = logits[0].max() + 1  # a tie
    left = probabilities(logits, [SamplingParams(top_p=0, **beside)] * 6)
    assert left.argmax(dim=-1).tolist() == [7, *logits[1:].argmax(dim=-1).tolist()]
    assert ((left > 0).sum(dim=-1) == 1).all()


@pytest.mark.parametrize("few", [1, 3, 17])
def test_few_candidates_and_all_candidates_agree_to_the_last_bit(monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """What the likeliest tokens tell must be what sorting all would tell, ties included."""
    params = [SamplingParams(**fields) for fields in SETTINGS]
    logits = make_logits(len(params), 300).round(decimals=0)  # many ties
    whole = probabilities(logits, params)
    monkeypatch.setattr(module, "_FEW", few)
    assert torch.equal(probabilities(logits, params), whole)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    params = [SamplingParams(**fields) for fields in SETTINGS]
    logits = make_logits(len(params), 3000)
    together = probabilities(logits, params)
    for index, own in enumerate(params):
        assert torch.equal(probabilities(logits[index : index + 1], [own]), together[index : index + 1]), own
    backwards = probabilities(logits.flip(0), params[::-1]).flip(0)
    assert torch.equal(backwards, together)


def test_a_row_that_cuts_nothing_keeps_its_rarest_tokens_beside_one_that_cuts() -> None:
    logits = make_logits(2, 100_000, scale=4.0)
    kept = probabilities(logits, [SamplingParams(), SamplingParams(top_p=0.5)]) > 0
    assert bool(kept[0].all())
    assert int(kept[1].sum()) < 1000


def test_the_logits_are_left_alone() -> None:
    logits = make_logits(2, 50)
    before = logits.clone()
    probabilities(logits, [SamplingParams(top_k=3, min_p=0.1, temperature=0.5)] * 2)
    assert torch.equal(logits, before)


# --- edges


EDGES: dict[str, Tensor] = {
    "all equal": torch.zeros(1, 20),
    "one token": torch.zeros(1, 1),
    "huge": torch.tensor([[1e6, 1e6 - 1, -1e6, 0.0]]),
    "hugely negative": torch.full((1, 5), -3e7),
    "masked": torch.tensor([[-torch.inf, 1.0, -torch.inf, 0.5, -torch.inf]]),
    "all masked but one": torch.tensor([[-torch.inf, -torch.inf, -5.0]]),
    "large spread": torch.linspace(-1e4, 1e4, 200)[None],
}


@pytest.mark.parametrize("edge", EDGES)
@pytest.mark.parametrize("fields", SETTINGS, ids=str)
def test_edges_give_distributions(edge: str, fields: dict[str, Any]) -> None:
    logits = EDGES[edge]
    found = probabilities(logits, [SamplingParams(**fields)])
    assert bool(found.isfinite().all())
    assert found.sum().item() == pytest.approx(1)
    assert bool((found[logits == -torch.inf] == 0).all())
    for number in (0.0, 0.5, 1 - 2**-53):
        token_id = int(draw(logits, [SamplingParams(**fields)], [number]))
        assert found[0, token_id] > 0


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"top_k": 1}, [1]),
        ({"top_k": 2}, [1, 2]),
        ({"top_k": 4}, [0, 1, 2, 4]),
        ({"top_p": 0.01}, [1]),
        ({"top_p": 0.6}, [1, 2]),
        ({"min_p": 1.0}, [1, 2, 4]),
    ],
)
def test_of_tokens_that_tie_the_lower_ids_stay(fields: dict[str, Any], kept: list[int]) -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, 1.0, 3.0, 0.0]])
    found = probabilities(logits, [SamplingParams(**fields)])
    assert found[0].nonzero()[:, 0].tolist() == kept


def test_top_k_keeps_tokens_however_unlikely() -> None:
    logits = torch.tensor([[0.0, -40.0, -41.0, -42.0]])
    assert probabilities(logits, [SamplingParams(top_k=3)])[0].nonzero()[:, 0].tolist() == [0, 1, 2]


def test_top_k_of_one_is_greedy_even_on_ties() -> None:
    logits = make_logits(200, 50).round(decimals=0)
    drawn = draw(logits, [SamplingParams(top_k=1)] * 200, [0.999] * 200)
    assert torch.equal(drawn, logits.argmax(dim=-1))


def test_broken_logits_of_one_row_give_a_token_and_leave_the_others() -> None:
    logits = make_logits(2, 50)
    params = [SamplingParams(top_p=0.9)] * 2
    alone = draw(logits[1:], params[1:], [0.5])
    logits[0] = torch.nan
    drawn = draw(logits, params, [0.5, 0.5])
    assert 0 <= int(drawn[0]) < 50
    assert int(drawn[1]) == int(alone[0])


# --- the draw


def test_a_draw_inverts_the_cumulative_distribution() -> None:
    logits = torch.tensor([0.25, 0.0, 0.5, 0.25]).log()[None]
    expected = {0.0: 0, 0.2: 0, 0.25: 2, 0.5: 2, 0.7499: 2, 0.7501: 3, 1 - 2**-53: 3}
    for number, token_id in expected.items():
        assert int(draw(logits, [SamplingParams()], [number])) == token_id, number


@pytest.mark.parametrize("fields", [{}, {"top_k": 5}, {"top_p": 0.7, "temperature": 0.5}, {"min_p": 0.2}], ids=str)
def test_draws_are_distributed_as_they_should(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    logits = make_logits(1, 12, scale=1.0)
    num_draws = 20_000
    numbers = [uniform(1234, index) for index in range(num_draws)]
    drawn = draw(logits.expand(num_draws, -1), [params] * num_draws, numbers)
    counts = drawn.bincount(minlength=12).double()
    expected = reference(logits, params)[0] * num_draws
    assert bool((counts[expected == 0] == 0).all())
    likely = expected > 0
    chi_square = ((counts - expected)[likely] ** 2 / expected[likely]).sum().item()
    assert chi_square < 40  # 11 degrees of freedom at most: a fair draw exceeds 40 once in 30,000 seeds


def test_rare_tokens_of_a_large_vocabulary_are_reached() -> None:
    """A float32 running sum would never get to the last ones."""
    logits = torch.zeros(1, 150_000)
    numbers = torch.linspace(0, 1, 1001, dtype=torch.float64)[:-1].tolist()
    drawn = [int(draw(logits, [SamplingParams()], [number])) for number in numbers[::100]]
    assert drawn == [round(number * 150_000) for number in numbers[::100]]
    assert int(draw(logits, [SamplingParams()], [1 - 2**-53])) == 149_999


# --- the numbers


def numbers(seed: int, count: int) -> Tensor:
    return torch.tensor([uniform(seed, index) for index in range(count)], dtype=torch.float64)


def test_numbers_are_repeatable_and_in_range() -> None:
    for seed in (0, 1, -1, MAX_SEED, -MAX_SEED):
        drawn = numbers(seed, 100)
        assert torch.equal(drawn, numbers(seed, 100))
        assert bool(((drawn >= 0) & (drawn < 1)).all())
    assert uniform(0, 0) == 0.0564663990004608, "answers of known seeds would change"


@pytest.mark.parametrize("by", ["index", "seed"])
def test_numbers_are_uniform(by: str) -> None:
    count = 20_000
    each = (uniform(*((7, i) if by == "index" else (i, 7))) for i in range(count))
    drawn = torch.tensor([*each], dtype=torch.float64)
    deviation = count**-0.5
    assert drawn.mean().item() == pytest.approx(0.5, abs=4 * deviation / 12**0.5)
    in_bins = (drawn * 50).long().bincount(minlength=50).double()
    chi_square = ((in_bins - count / 50) ** 2 / (count / 50)).sum().item()
    assert chi_square < 100  # 49 degrees of freedom
    neighbours = torch.corrcoef(torch.stack([drawn[:-1], drawn[1:]]))[0, 1].item()
    assert abs(neighbours) < 4 * deviation
    last_bits = (drawn * 2**53).long() & 1
    assert last_bits.double().mean().item() == pytest.approx(0.5, abs=4 * 0.5 * deviation)


def test_seeds_and_indices_do_not_mix() -> None:
    pairs = [(seed, index) for seed in range(-20, 20) for index in range(40)]
    assert len({uniform(*pair) for pair in pairs}) == len(pairs)


def test_the_speed_for_a_large_vocabulary() -> None:
    """Printed (``pytest -s``), not bounded: machines differ."""
    logits = make_logits(4, 150_000, scale=6.0)
    for fields in ({}, {"top_k": 50}, {"top_p": 0.9}, {"top_k": 20, "top_p": 0.8, "min_p": 0.05}):
        params = [SamplingParams(**fields)] * 4
        started = time.perf_counter()
        drawn = draw(logits, params, [0.5] * 4)
        print(f"{fields or 'softmax only'}: {(time.perf_counter() - started) / 4 * 1e3:.1f} ms a row")
        assert bool((drawn < 150_000).all())

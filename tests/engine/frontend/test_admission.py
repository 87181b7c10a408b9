from __future__ import annotations

from typing import Any

import pytest

from chiasm.engine.frontend.admission import (
    MAX_PROMPT_LOGPROBS,
    check_prompt_length,
    check_prompt_logprobs,
    engine_requests,
)
from chiasm.engine.frontend.tokenizer import Tokenizer
from chiasm.schema.chat import PreparedPrompt
from chiasm.schema.request import EngineRequest
from chiasm.schema.sampling import MAX_N, MAX_SEED, SamplingParams
from tests.engine.frontend.support import make_facts, make_item, refused

PROMPT = PreparedPrompt("Hi", (1, 2, 3, 4), (make_item(2).placed_at(1),), cache_salt="salt")


def admit(
    tokenizer: Tokenizer, params: SamplingParams, *, max_model_len: int = 10, seed: int = 7
) -> list[EngineRequest]:
    return list(engine_requests(PROMPT, params, "seq-5", make_facts(tokenizer), max_model_len, seed))


def test_a_sequence_has_what_its_request_has(tokenizer: Tokenizer) -> None:
    params = SamplingParams(max_tokens=5, seed=3, top_p=0.5, stop="x")
    assert admit(tokenizer, params) == [EngineRequest("seq-5-0", PROMPT.token_ids, PROMPT.items, params, "salt")]


@pytest.mark.parametrize(("asked", "given"), [(None, 6), (1, 1), (6, 6), (7, 6), (2**62, 6)])
def test_max_tokens_is_what_fits(tokenizer: Tokenizer, asked: int | None, given: int) -> None:
    (request,) = admit(tokenizer, SamplingParams(max_tokens=asked))
    assert request.sampling.max_tokens == given


def test_min_tokens_that_do_not_fit_are_refused_with_the_numbers(tokenizer: Tokenizer) -> None:
    assert admit(tokenizer, SamplingParams(max_tokens=None, min_tokens=6))
    for max_tokens in (None, 100):
        with refused("min_tokens", "min_tokens=7", "max_model_len=10", "6 tokens", "prompt of 4"):
            admit(tokenizer, SamplingParams(max_tokens=max_tokens, min_tokens=7))


@pytest.mark.parametrize("bad", [-1, 417, 2**40])
def test_stop_tokens_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, bad: int) -> None:
    size = make_facts(tokenizer).vocab_size
    assert size == 417
    assert admit(tokenizer, SamplingParams(stop_token_ids=(0, size - 1)))
    with refused("stop_token_ids", str(bad), str(size)):
        admit(tokenizer, SamplingParams(stop_token_ids=(0, bad)))


@pytest.mark.parametrize("bad", [-1, 417, 2**40])
def test_tokens_outside_the_vocabulary_are_neither_allowed_nor_biased(tokenizer: Tokenizer, bad: int) -> None:
    assert admit(tokenizer, SamplingParams(allowed_token_ids=(0, 416), logit_bias={0: 1, 416: 1}))
    with refused("allowed_token_ids", str(bad), "417"):
        admit(tokenizer, SamplingParams(allowed_token_ids=(0, bad)))
    with refused("logit_bias", str(bad), "417"):
        admit(tokenizer, SamplingParams(logit_bias={0: 1, bad: 1}))


def test_one_sequence_scores_the_prompt_for_all(tokenizer: Tokenizer) -> None:
    requests = admit(tokenizer, SamplingParams(n=3, prompt_logprobs=2))
    assert [request.sampling.prompt_logprobs for request in requests] == [2, None, None]


def test_more_log_probabilities_than_anybody_reads_are_refused() -> None:
    check_prompt_logprobs(10**9, None)
    check_prompt_logprobs(MAX_PROMPT_LOGPROBS // 2, 1)
    with refused("prompt_logprobs", "prompt_logprobs=20", "12484 tokens", "262164", str(MAX_PROMPT_LOGPROBS)):
        check_prompt_logprobs(12_484, 20)
    with refused("prompt_logprobs", str(MAX_PROMPT_LOGPROBS)):
        check_prompt_logprobs(MAX_PROMPT_LOGPROBS + 1, 0)


@pytest.mark.parametrize("first", [0, 5, -5, -1, MAX_SEED - 1, MAX_SEED, -MAX_SEED])
def test_every_answer_has_its_own_seed(tokenizer: Tokenizer, first: int) -> None:
    requests = admit(tokenizer, SamplingParams(n=MAX_N, seed=first))
    seeds = [request.sampling.seed for request in requests]
    assert [request.request_id for request in requests] == [f"seq-5-{index}" for index in range(MAX_N)]
    assert {request.sampling.n for request in requests} == {1}
    assert len(set(seeds)) == MAX_N
    assert all(seed is not None and abs(seed) <= MAX_SEED for seed in seeds)
    assert seeds[0] == first
    neighbours = [r.sampling.seed for r in admit(tokenizer, SamplingParams(n=MAX_N, seed=first // 2))]
    assert first == first // 2 or not set(seeds) & set(neighbours)
    assert seeds == [request.sampling.seed for request in admit(tokenizer, SamplingParams(n=MAX_N, seed=first))]
    assert [seeds[0]] == [r.sampling.seed for r in admit(tokenizer, SamplingParams(seed=first))]


def seeds_of(tokenizer: Tokenizer, params: SamplingParams, seed: int) -> list[Any]:
    return [request.sampling.seed for request in admit(tokenizer, params, seed=seed)]


def test_the_engine_gives_seeds_to_requests_without(tokenizer: Tokenizer) -> None:
    assert seeds_of(tokenizer, SamplingParams(n=2), 7)[0] == 7
    assert seeds_of(tokenizer, SamplingParams(n=2, seed=0), 7)[0] == 0


@pytest.mark.parametrize("length", [1, 9])
def test_a_prompt_that_leaves_room_for_an_answer_is_let_in(length: int) -> None:
    check_prompt_length(length, 10, "prompt")


@pytest.mark.parametrize("length", [10, 11, 10_000])
def test_a_prompt_that_is_too_long_is_refused_with_both_numbers(length: int) -> None:
    with refused("messages", f"{length} tokens", "max_model_len=10", "at most 9"):
        check_prompt_length(length, 10, "messages")


def test_an_empty_prompt_is_refused() -> None:
    with refused("prompt", "empty"):
        check_prompt_length(0, 10, "prompt")

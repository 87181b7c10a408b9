"""Log-probabilities of prompts and limits on tokens, from whole engines: small steps on one rank, and two ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from PIL import Image

from chiasm import LLM, SamplingParams, StructuredOutputs
from chiasm.errors import UserError
from chiasm.schema.output import RequestOutput
from tests.checkpoints.common import SavedModel
from tests.e2e.compare import most_difference, possible_ranks
from tests.e2e.pictures import photograph
from tests.e2e.reference import Reference, folder_of, image_prompt

pytestmark = pytest.mark.usefixtures("forked_children")

_BLOCK_BYTES = 2 * 3 * 16 * 2 * 8 * 4  # keys and values, layers, tokens, heads, head size, float32
SETTINGS: dict[str, dict[str, Any]] = {
    "small steps": {
        "max_model_len": 512,
        "max_num_batched_tokens": 50,
        "max_num_seqs": 12,
        "mm_encoder_cache_gb": 0,
        "kv_cache_memory_bytes": 33 * _BLOCK_BYTES,
    },
    "two ranks": {"tensor_parallel_size": 2, "max_num_seqs": 3},
}
SCORED = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, prompt_logprobs=2)


@pytest.fixture(scope="module", params=list(SETTINGS))
def llm(request: pytest.FixtureRequest, qwen2_5_vl: SavedModel) -> Iterator[LLM]:
    with LLM(folder_of(qwen2_5_vl), dtype="float32", **SETTINGS[request.param]) as llm:
        yield llm


@pytest.fixture(scope="module")
def reference(qwen2_5_vl: SavedModel) -> Reference:
    return Reference(qwen2_5_vl)


def ask(llm: LLM, prompts: Any, **fields: Any) -> list[RequestOutput]:
    params = SamplingParams(**{"max_tokens": 30, "seed": 1, "ignore_eos": True, **fields})
    return llm.generate(prompts, params, use_tqdm=False)


def prompt_is_scored_as_by(reference: Reference, output: RequestOutput, images: list[Image.Image]) -> None:
    """Each token of the prompt, and the two likeliest, have Hugging Face's log-probabilities and ranks."""
    assert output.prompt is not None
    assert output.prompt_logprobs is not None
    logits = reference.logits(output.prompt, images)
    expected, difference = logits.log_softmax(-1), most_difference(logits)
    first, *scored = output.prompt_logprobs
    assert first is None
    for token, likely, line in zip(output.prompt_token_ids[1:], scored, expected[:-1], strict=True):
        assert len(likely) == 2 + (likely[token].rank > 2)
        for other, entry in likely.items():
            assert entry.logprob == pytest.approx(line[other].item(), rel=0, abs=difference)
            assert entry.rank in possible_ranks(line, other, difference)
            assert other == token or entry.rank <= 2


def test_a_prompt_in_the_prefix_cache_is_scored_anew(llm: LLM, reference: Reference) -> None:
    text = "There are 3 cats, 12 dogs and 456 birds. " * 3
    for _ in range(2):
        assert ask(llm, text, max_tokens=1)[0].outputs
    assert ask(llm, text, max_tokens=1)[0].num_cached_tokens > 0
    for n in (1, 3):
        [output] = ask(llm, text, prompt_logprobs=2, n=n, max_tokens=3)
        assert output.num_cached_tokens == 0 or n > 1, "the others take it from the first"
        assert [len(answer.token_ids) for answer in output.outputs] == [3] * n
        prompt_is_scored_as_by(reference, output, [])


def test_prompts_that_give_way_to_each_other_are_scored_once(llm: LLM, reference: Reference) -> None:
    image = photograph("chelsea.png", (120, 90))
    texts = [f"{index}: " + "one two three " * 9 for index in range(9)]
    picture = {"prompt": image_prompt(1), "multi_modal_data": {"image": image}}
    before = llm.stats.num_preemptions
    *outputs, last = llm.generate([*texts, picture], SCORED, use_tqdm=False)
    for output in outputs:
        prompt_is_scored_as_by(reference, output, [])
    prompt_is_scored_as_by(reference, last, [image])
    has_few_blocks = llm.stats.kv_blocks < 40
    assert has_few_blocks == (llm.stats.num_preemptions > before)


def test_one_token_has_nothing_to_be_scored_by(llm: LLM) -> None:
    [output] = ask(llm, [[5]], prompt_logprobs=0)
    assert output.prompt_logprobs == [None]


def test_tokens_are_biased_and_allowed(llm: LLM) -> None:
    assert set(ask(llm, "Hi", logit_bias={33: 100})[0].outputs[0].token_ids) == {33}
    [output] = ask(llm, "Hi", allowed_token_ids=(40, 50, 60), n=3)
    answers = [answer.token_ids for answer in output.outputs]
    assert {token for answer in answers for token in answer} == {40, 50, 60}
    assert len({tuple(answer) for answer in answers}) == 3
    assert [a.token_ids for a in ask(llm, "Hi", allowed_token_ids=[60, 50, 40], n=3)[0].outputs] == answers


def test_bad_words_do_not_come(llm: LLM) -> None:
    """Words of an answer that would come, each of several tokens."""
    [output] = ask(llm, "Hi", logit_bias=dict.fromkeys(range(40, 44), 20))
    found = output.outputs[0].text
    bad = [found[:3], found[4:6]]
    [output] = ask(llm, "Hi", logit_bias=dict.fromkeys(range(40, 44), 20), bad_words=bad)
    text = output.outputs[0].text
    assert text != found
    assert not any(word in text for word in bad)


def test_an_answer_to_which_no_token_is_left_fails_alone(llm: LLM) -> None:
    word = ask(llm, "Hi", allowed_token_ids=[40], max_tokens=1)[0].outputs[0].text
    params = [
        SamplingParams(max_tokens=5, allowed_token_ids=(40,), bad_words=(word * 3,), ignore_eos=True),
        SamplingParams(max_tokens=5, allowed_token_ids=(41,), bad_words=(word,), ignore_eos=True),
    ]
    with pytest.raises(UserError, match="no token is left to sample") as caught:
        llm.generate(["Hi", "Ho"], params, use_tqdm=False)
    assert caught.value.param == "allowed_token_ids"
    assert llm.generate("Ho", params[1], use_tqdm=False)[0].outputs[0].token_ids == [41] * 5


def test_a_form_is_kept_to_with_bad_words(llm: LLM) -> None:
    form = StructuredOutputs(choice=("yes", "no", "perhaps"))
    answers = {
        ask(llm, "Hi", seed=seed, ignore_eos=False, structured_outputs=form, bad_words=("y", "yes", "pe", "p"))[0]
        .outputs[0]
        .text
        for seed in range(4)
    }
    assert answers == {"no"}

"""The model that lm-eval drives, against Hugging Face's class with the same weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

from chiasm.errors import UserError
from chiasm.evals import harness
from chiasm.evals.harness import ChiasmVLM
from tests.checkpoints.common import SavedModel

pytestmark = pytest.mark.usefixtures("forked_children")

CONTEXTS = ["What do you see", "The picture shows a ", ""]
CONTINUATIONS = [" in this image?", "small red house", "Hello, world!"]


@pytest.fixture(scope="module")
def lm(qwen2_5_vl: SavedModel) -> Iterator[ChiasmVLM]:
    lm = ChiasmVLM(str(qwen2_5_vl.folder), dtype="float32", max_model_len=64, batch_size=1)
    yield lm
    lm.close()


@pytest.fixture(scope="module")
def reference(qwen2_5_vl: SavedModel) -> tuple[Any, Any]:
    model = Qwen2_5_VLForConditionalGeneration.from_pretrained(qwen2_5_vl.folder, dtype=torch.float32).eval()
    return AutoTokenizer.from_pretrained(qwen2_5_vl.folder), model


def instances(kind: str, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, own, index) for index, own in enumerate(arguments)]


@torch.inference_mode()
def score(model: Any, front: list[int], scored: list[int]) -> tuple[float, bool]:
    logprobs = model(input_ids=torch.tensor([[*front, *scored]])).logits[0, len(front) - 1 : -1].log_softmax(-1)
    picked = logprobs[range(len(scored)), scored]
    return float(picked.sum()), bool((logprobs.argmax(-1) == torch.tensor(scored)).all())


def test_log_likelihoods_of_texts(lm: ChiasmVLM, reference: tuple[Any, Any]) -> None:
    tokenizer, model = reference
    found = lm.loglikelihood(instances("loglikelihood", *zip(CONTEXTS, CONTINUATIONS, strict=True)))
    for context, continuation, (value, is_greedy) in zip(CONTEXTS, CONTINUATIONS, found, strict=True):
        whole = tokenizer(context + continuation).input_ids
        front = tokenizer(context.rstrip()).input_ids
        scored = whole[len(front) :]
        expected = score(model, front or [model.config.text_config.eos_token_id], scored)
        assert value == pytest.approx(expected[0], abs=1e-3)
        assert is_greedy == expected[1]


def test_the_greedy_continuation_is_one(lm: ChiasmVLM, reference: tuple[Any, Any]) -> None:
    tokenizer, model = reference
    front = tokenizer(CONTEXTS[0]).input_ids
    likeliest = int(model(input_ids=torch.tensor([front])).logits[0, -1].argmax())
    [(_, is_greedy)] = lm._scores([(front, [likeliest])], use_tqdm=False)
    assert is_greedy


def test_log_likelihoods_within_a_conversation(lm: ChiasmVLM, reference: tuple[Any, Any]) -> None:
    tokenizer, model = reference
    asked = [[{"role": "user", "content": text}] for text in ("What do you see?", "What is it?")]
    pairs = [(lm.apply_chat_template(asked[index]), said) for index, said in ((0, "A small"), (1, "Red"), (0, "No"))]
    plain = (CONTEXTS[0], CONTINUATIONS[0])
    found = lm.loglikelihood(instances("loglikelihood", pairs[0], plain, *pairs[1:]))
    assert found.pop(1) == pytest.approx(lm.loglikelihood(instances("loglikelihood", plain))[0], abs=1e-4)
    for (value, _), index, (_, said) in zip(found, (0, 1, 0), pairs, strict=True):
        front = tokenizer.apply_chat_template(asked[index], add_generation_prompt=True, return_dict=False)
        assert value == pytest.approx(score(model, front, tokenizer(said).input_ids)[0], abs=1e-3)


def test_a_text_longer_than_the_context_is_scored_in_windows(lm: ChiasmVLM, reference: tuple[Any, Any]) -> None:
    tokenizer, model = reference
    text = "There are 3 cats, 12 dogs and 456 birds; the answer is 789. " * 6
    tokens = tokenizer(text).input_ids
    assert len(tokens) > 64
    [value] = lm.loglikelihood_rolling(instances("loglikelihood_rolling", (text,)))
    expected = 0.0
    for start in range(0, len(tokens), 62):
        scored = tokens[start : start + 62]
        first = max(0, start + len(scored) - 62)
        before = [model.config.text_config.eos_token_id, *tokens][first : start + 1]
        expected += score(model, before, scored)[0]
    assert value == pytest.approx(expected, abs=1e-2)


def test_texts_are_asked_as_they_are_and_conversations_by_the_template(
    lm: ChiasmVLM, reference: tuple[Any, Any]
) -> None:
    tokenizer, model = reference
    packed = lm.apply_chat_template([{"role": "user", "content": CONTEXTS[0]}])
    settings = {"until": [], "max_gen_toks": 4}
    both = lm.generate_until(instances("generate_until", (CONTEXTS[0], settings), (packed, settings)), True)
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": CONTEXTS[0]}], tokenize=False, add_generation_prompt=True
    )
    for prompt, answer in zip((CONTEXTS[0], rendered), both, strict=True):
        ids = tokenizer(prompt, return_tensors="pt")
        tokens = model.generate(**ids, max_new_tokens=4, do_sample=False)[0, ids.input_ids.shape[1] :]
        assert answer == tokenizer.decode(tokens, skip_special_tokens=True)


def test_settings_that_are_unknown_are_named(lm: ChiasmVLM) -> None:
    with pytest.raises(UserError, match="num_beams, unknown to chiasm-vlm"):
        lm.generate_until(instances("generate_until", ("a", {"num_beams": 4})), True)


def test_data_out_of_reach_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def raise_(message: str) -> None:
        raise ConnectionError(message)

    monkeypatch.setattr(harness, "cli_evaluate", lambda: raise_("Couldn't reach 'HuggingFaceM4/ChartQA' on the Hub"))
    assert harness.main() == 2
    assert "on the Hub. chiasm eval chartqa (or mmmu) --data PATH" in capsys.readouterr().err
    monkeypatch.setattr(harness, "cli_evaluate", lambda: raise_("a rank has gone"))
    with pytest.raises(ConnectionError, match="rank"):
        harness.main()


def test_what_cannot_be_scored_is_refused(lm: ChiasmVLM) -> None:
    with pytest.raises(UserError, match="prompts with pictures"):
        lm.loglikelihood(instances("loglikelihood", ("a", "b", {"visual": []})))
    with pytest.raises(UserError, match="apply_chat_template must be given without a name"):
        lm.chat_template("named")

"""Answers in a form, from whole engines whose random weights would say anything else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from chiasm import LLM, SamplingParams, StructuredOutputs
from chiasm.errors import UserError
from chiasm.schema.structured import Thinking
from tests.checkpoints.common import SavedModel
from tests.e2e.reference import folder_of

SCHEMA = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green", "blue"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 99},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["colour", "size", "tags"],
    "additionalProperties": False,
}
FORMS: dict[str, dict[str, Any]] = {
    "json": {"json": SCHEMA},
    "regex": {"regex": "[0-9]{3}-[a-z]{2}"},
    "choice": {"choice": ("yes", "no", "perhaps")},
    "grammar": {"grammar": 'root ::= "a" ("b" | "c") "d"'},
}


def params(form: dict[str, Any] | None, **fields: Any) -> SamplingParams:
    structured = None if form is None else StructuredOutputs(**form)
    return SamplingParams(**{"max_tokens": 400, "seed": 0, "structured_outputs": structured, **fields})


def is_right(name: str, text: str) -> bool:
    if name == "json":
        value = json.loads(text)
        return bool(
            set(value) == {"colour", "size", "tags"}
            and value["colour"] in ("red", "green", "blue")
            and 0 <= value["size"] < 100
            and len(value["tags"]) <= 2
        )
    if name == "choice":
        return text in FORMS["choice"]["choice"]
    return re.fullmatch({"regex": "[0-9]{3}-[a-z]{2}", "grammar": "a[bc]d"}[name], text) is not None


@pytest.fixture(scope="module", params=[1, 2])
def llm(request: pytest.FixtureRequest, qwen2_5_vl: SavedModel) -> Iterator[LLM]:
    with LLM(folder_of(qwen2_5_vl), dtype="float32", tensor_parallel_size=request.param) as llm:
        yield llm
    left = [child.cmdline() for child in psutil.Process().children(recursive=True)]
    assert not any("chiasm.grammar.worker" in command for command in left)


@pytest.mark.parametrize("temperature", [0.0, 2.0])
def test_answers_have_their_forms_beside_free_ones(llm: LLM, temperature: float) -> None:
    free = params(None, temperature=temperature, max_tokens=12)
    (alone,) = llm.generate(["What is it?"], free, use_tqdm=False)
    forms = [params(form, temperature=temperature) for form in FORMS.values()]
    outputs = llm.generate(["What is it?"] * (1 + len(forms)), [free, *forms], use_tqdm=False)
    for name, output in zip(FORMS, outputs[1:], strict=True):
        assert output.outputs[0].finish_reason == "stop"
        assert is_right(name, output.outputs[0].text), (name, output.outputs[0].text)
    assert outputs[0].outputs[0].token_ids == alone.outputs[0].token_ids


def test_several_answers_to_one_prompt(llm: LLM) -> None:
    (output,) = llm.generate(["A number:"], params(FORMS["regex"], n=4, temperature=1.5), use_tqdm=False)
    texts = [answer.text for answer in output.outputs]
    assert all(is_right("regex", text) for text in texts)
    assert len(set(texts)) > 1


def test_a_stop_string_ends_an_answer_within_its_form(llm: LLM) -> None:
    (output,) = llm.generate(["A number:"], params(FORMS["regex"], stop=("-",)), use_tqdm=False)
    answer = output.outputs[0]
    assert re.fullmatch("[0-9]{3}", answer.text)
    assert answer.stop_reason == "-"


def test_an_answer_cannot_end_before_its_form(llm: LLM) -> None:
    start, end, stop, eos = 300, 301, 302, llm.facts.eos_token_ids[0]
    form = {"choice": ("yes", "no"), "thinking": Thinking(start, end, is_open=True)}
    biases = {eos: 100, stop: 100, end: 90}
    asked = params(form, stop_token_ids=(stop,), logit_bias=biases, max_tokens=20)
    (output,) = llm.generate(["Is it?"], asked, use_tqdm=False)
    answer = output.outputs[0]
    assert answer.token_ids[0] == end
    assert answer.text.endswith(("yes", "no"))
    assert answer.finish_reason == "stop"
    asked = params(form, logit_bias={eos: 100, end: -100}, max_tokens=20)
    (output,) = llm.generate(["Is it?"], asked, use_tqdm=False)
    assert output.outputs[0].finish_reason == "length"


def test_bad_forms_cost_only_their_own_request(llm: LLM) -> None:
    with pytest.raises(UserError, match="structured_outputs can't be followed"):
        llm.generate(["a"], params({"regex": "["}), use_tqdm=False)
    # This one is found out only when an answer has gone a long way.
    endless = params({"regex": "([a-z]{1,100}){1,100}"}, max_tokens=200)
    with pytest.raises(UserError, match="takes too much work to follow"):
        llm.generate(["a"], endless, use_tqdm=False)
    (output,) = llm.generate(["a"], params(FORMS["choice"]), use_tqdm=False)
    assert is_right("choice", output.outputs[0].text)
    assert llm.stats.kv_blocks_used == 0


def test_preempted_answers_go_on_in_their_forms(qwen2_5_vl: SavedModel) -> None:
    form = params({"regex": "[a-z]{60}"}, max_tokens=100)
    prompts = [f"Word number {i} of many is" for i in range(6)]
    settings: dict[str, Any] = {"dtype": "float32", "max_model_len": 128}
    block_bytes = 2 * 3 * 16 * 2 * 8 * 4  # keys and values, layers, tokens, heads, head size, float32
    with LLM(folder_of(qwen2_5_vl), **settings) as llm:
        roomy = [output.outputs[0].text for output in llm.generate(prompts, form, use_tqdm=False)]
        assert llm.stats.num_preemptions == 0
    with LLM(folder_of(qwen2_5_vl), kv_cache_memory_bytes=9 * block_bytes, **settings) as llm:
        tight = [output.outputs[0].text for output in llm.generate(prompts, form, use_tqdm=False)]
        assert llm.stats.num_preemptions > 0
    assert tight == roomy
    assert all(re.fullmatch("[a-z]{60}", text) for text in tight)

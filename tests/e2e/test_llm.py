"""``chiasm.LLM`` against Hugging Face: whole engines, real processes, real pictures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
from PIL import Image

from chiasm import LLM, SamplingParams
from chiasm.errors import UserError
from chiasm.schema.facts import EncoderRates
from chiasm.vision.timeline import read_spans
from tests.checkpoints.common import SavedModel
from tests.e2e.pictures import chart, photograph
from tests.e2e.reference import NUM_TOKENS, Reference, folder_of, image_prompt

pytestmark = pytest.mark.usefixtures("forked_children")

GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)


class Case(NamedTuple):
    prompt: str
    images: list[Image.Image]
    tokens: list[int]

    def as_input(self) -> dict[str, Any]:
        return {"prompt": self.prompt, "multi_modal_data": {"image": self.images}} if self.images else self.prompt


def _pictures() -> dict[str, list[Image.Image]]:
    noise = np.random.default_rng(0).integers(0, 256, (150, 1, 3), dtype=np.uint8)
    return {
        "text": [],
        "photograph": [photograph()],
        "chart": [chart()],
        "two of different sizes": [photograph("chelsea.png", (120, 90)), photograph("coffee.png", (64, 200))],
        "1x1": [Image.new("RGB", (1, 1), "red")],
        "1x150": [Image.fromarray(noise)],
        "3x560": [photograph("rocket.jpg", (560, 3))],
    }


@pytest.fixture(scope="module")
def cases(qwen2_5_vl: SavedModel) -> dict[str, Case]:
    reference = Reference(qwen2_5_vl)
    made = {}
    for name, images in _pictures().items():
        prompt = image_prompt(len(images))
        made[name] = Case(prompt, images, reference.answer(prompt, images))
    return made


@pytest.fixture(scope="module")
def llm(qwen2_5_vl: SavedModel) -> Iterator[LLM]:
    with LLM(folder_of(qwen2_5_vl), dtype="float32") as llm:
        yield llm


def tokens(llm: LLM, inputs: Any, params: SamplingParams = GREEDY) -> list[list[int]]:
    return [output.outputs[0].token_ids for output in llm.generate(inputs, params, use_tqdm=False)]


@pytest.mark.parametrize("name", list(_pictures()))
def test_greedy_tokens_equal_hugging_face(llm: LLM, cases: dict[str, Case], name: str) -> None:
    assert tokens(llm, cases[name].as_input()) == [cases[name].tokens]


@pytest.mark.parametrize(
    ("size", "mode"), [(2, "weights"), (2, "data"), (2, "auto"), (4, "weights"), (4, "data"), (4, "auto")]
)
def test_every_encoder_mode_gives_the_same_tokens(
    qwen2_5_vl: SavedModel, cases: dict[str, Case], size: int, mode: str
) -> None:
    with LLM(folder_of(qwen2_5_vl), dtype="float32", tensor_parallel_size=size, mm_encoder_tp_mode=mode) as llm:
        inputs = [case.as_input() for case in cases.values()]
        assert tokens(llm, inputs) == [case.tokens for case in cases.values()]


def test_pictures_cut_by_rows_give_the_same_tokens(
    qwen2_5_vl: SavedModel, cases: dict[str, Case], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With rates by which an exchange costs nothing, so that small pictures are cut too."""
    monkeypatch.setenv("CHIASM_CACHE", str(tmp_path))
    settings = {"dtype": "float32", "tensor_parallel_size": 2, "mm_encoder_tp_mode": "auto"}
    with LLM(folder_of(qwen2_5_vl), **settings):
        [file] = tmp_path.iterdir()
    rates = msgspec.json.decode(file.read_bytes(), type=EncoderRates)
    cheap = msgspec.structs.replace(rates, seconds_per_exchange=1e-12, seconds_per_byte=1e-18)
    file.write_bytes(msgspec.json.encode(cheap))
    with LLM(folder_of(qwen2_5_vl), **settings) as llm:
        for name in ("photograph", "chart", "two of different sizes"):
            assert tokens(llm, cases[name].as_input()) == [cases[name].tokens]
        assert any("cut by rows" in reason for reason in llm.stats.plan_reasons), llm.stats.plan_reasons


def test_tight_limits_change_nothing(llm: LLM, qwen2_5_vl: SavedModel, cases: dict[str, Case]) -> None:
    """Small chunks, a small encoder budget, and so few blocks that sequences give way to each other."""
    block_bytes = 2 * 3 * 16 * 2 * 8 * 4  # keys and values, layers, tokens, heads, head size, float32
    texts = [f"{index}: " + "one two three " * 9 for index in range(12)]
    with LLM(
        folder_of(qwen2_5_vl),
        dtype="float32",
        max_model_len=512,
        max_num_batched_tokens=50,
        max_num_batched_patches=100,
        mm_encoder_cache_gb=0,
        mm_processor_cache_gb=0,
        kv_cache_memory_bytes=block_bytes * 33,
    ) as tight:
        inputs = [case.as_input() for case in cases.values()]
        assert tokens(tight, inputs) == [case.tokens for case in cases.values()]
        assert tokens(tight, texts) == tokens(llm, texts)
        assert tight.stats.num_preemptions > 0


@pytest.mark.parametrize(("size", "mode"), [(1, "auto"), (2, "auto"), (2, "data"), (2, "weights")])
def test_pictures_that_take_many_steps_beside_an_answer_change_nothing(
    llm: LLM, qwen2_5_vl: SavedModel, cases: dict[str, Case], tmp_path: Path, size: int, mode: str
) -> None:
    """A budget that a single layer exceeds, while another request decodes."""
    talk = SamplingParams(temperature=0, max_tokens=600, ignore_eos=True)
    names = ["photograph", "chart", "two of different sizes", "1x150", "3x560"]
    with LLM(
        folder_of(qwen2_5_vl),
        dtype="float32",
        tensor_parallel_size=size,
        mm_encoder_tp_mode=mode,
        encoder_step_budget_ms=0.001,
        mm_encoder_trace_dir=str(tmp_path),
    ) as slow:
        outputs = slow.generate(
            ["Once", *(cases[name].as_input() for name in names)], [talk, *[GREEDY] * len(names)], use_tqdm=False
        )
        assert slow.stats.encoder_bytes_used == slow.stats.kv_blocks_used == 0
    answers = [output.outputs[0].token_ids for output in outputs]
    assert answers == [tokens(llm, "Once", talk)[0], *(cases[name].tokens for name in names)]
    done = [span.name for span in read_spans(tmp_path, 0)]
    assert done.count("encode") > 3 * done.count("load"), "a tower of four layers has five stages"


def test_chat_equals_hugging_face(llm: LLM, qwen2_5_vl: SavedModel) -> None:
    image = photograph("chelsea.png", (100, 80))
    content = [{"type": "image", "image": image}, {"type": "text", "text": "Was ist das? 🙂"}]
    messages = [{"role": "user", "content": content}]
    reference = Reference(qwen2_5_vl)
    expected = reference.answer(reference.chat_prompt(messages), [image])
    [output] = llm.chat(messages, GREEDY, use_tqdm=False)
    assert output.outputs[0].token_ids == expected
    assert output.num_image_tokens == 3 * 4


def test_prefix_and_encoder_caches_change_nothing(llm: LLM, cases: dict[str, Case]) -> None:
    case = cases["photograph"]
    first, second = (llm.generate(case.as_input(), GREEDY, use_tqdm=False)[0] for _ in range(2))
    assert first.outputs[0].token_ids == second.outputs[0].token_ids == case.tokens
    assert second.num_cached_tokens > 0
    assert llm.stats.processor_hits > 0, "nor does keeping its pixels"


def test_sampling_with_a_seed_is_repeatable_in_any_company(llm: LLM) -> None:
    params = SamplingParams(temperature=1, seed=7, max_tokens=12, ignore_eos=True)
    alone = tokens(llm, "Once", params)
    assert tokens(llm, ["Once", "upon", "a"], params)[0] == alone[0]
    assert tokens(llm, "Once", SamplingParams(temperature=1, seed=8, max_tokens=12, ignore_eos=True)) != alone


def test_n_answers_and_logprobs(llm: LLM) -> None:
    params = SamplingParams(temperature=1, n=3, seed=1, max_tokens=5, logprobs=2, ignore_eos=True)
    [output] = llm.generate("Once", params, use_tqdm=False)
    assert len({tuple(answer.token_ids) for answer in output.outputs}) == 3
    for answer in output.outputs:
        assert answer.logprobs is not None
        chosen = [by_id[token].logprob for by_id, token in zip(answer.logprobs, answer.token_ids, strict=True)]
        assert answer.cumulative_logprob == pytest.approx(sum(chosen))


def test_a_stop_string_ends_the_answer(llm: LLM) -> None:
    [whole] = llm.generate("Once", GREEDY, use_tqdm=False)
    text = whole.outputs[0].text
    stop = text[4:6]
    params = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, stop=[stop])
    [cut] = llm.generate("Once", params, use_tqdm=False)
    assert cut.outputs[0].text == text[: text.index(stop)]
    assert (cut.outputs[0].finish_reason, cut.outputs[0].stop_reason) == ("stop", stop)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"prompt": image_prompt(2), "multi_modal_data": {"image": [Image.new("RGB", (9, 9))]}},
            "2 image placeholders",
        ),
        ({"prompt": "x", "multi_modal_data": {"image": Image.new("RGB", (9, 9))}}, "0 image placeholders"),
        (image_prompt(1), r"media token '<\|vision_start\|>'"),
        ({"prompt": "x", "multi_modal_data": {"audio": 1}}, "unknown key 'audio'"),
        ({"text": "x"}, "unknown key 'text'"),
        ("word " * 5000, "max_model_len=4096"),
        ("x" * 200_000, "200000 characters"),
        ("", "empty"),
        ([99999], "token ids in"),
    ],
)
def test_bad_prompts_are_refused_with_the_reason(llm: LLM, inputs: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        llm.generate(inputs, GREEDY, use_tqdm=False)
    assert len(tokens(llm, "still there")) == 1
    assert llm.stats.kv_blocks_used == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tensor_parallel_sise": 2}, "did you mean tensor_parallel_size"),
        ({"tensor_parallel_size": 3}, "3"),
        ({"max_model_len": 10**6}, "max_model_len=1000000 is above"),
        ({"kv_cache_memory_bytes": 1000}, "max_model_len=4096 needs more|room for"),
        ({"max_num_seqs": 0}, "max_num_seqs must be at least 1"),
        ({"mm_encoder_tp_mode": "both"}, "both"),
        ({"chat_template": "{% if %}"}, "does not compile"),
    ],
)
def test_bad_settings_are_refused_with_the_reason(
    qwen2_5_vl: SavedModel, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UserError, match=message):
        LLM(folder_of(qwen2_5_vl), **settings)

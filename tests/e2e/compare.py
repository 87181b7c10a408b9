"""A checkpoint in chiasm against the same in Hugging Face's own class: prompts of every kind, logits, answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from PIL import Image
from torch import Tensor

from chiasm import LLM, SamplingParams
from chiasm.config.engine import EncoderMode, EngineConfig
from chiasm.llm.inputs import as_prompts
from chiasm.llm.serving import AsyncLLM
from chiasm.models.loader import load_model
from chiasm.multimodal.pixels import read_rows
from chiasm.schema.output import Logprob, RequestOutput
from chiasm.schema.sampling import MAX_LOGPROBS
from tests.e2e.patch_inputs import Frames
from tests.e2e.reference import NUM_TOKENS, Continuation, Reference
from tests.invariants import CPU, run_decoder
from tests.prompts import Prompt
from tests.rounding import most_rounding

_GREEDY = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=MAX_LOGPROBS)
_SCORED = msgspec.structs.replace(_GREEDY, prompt_logprobs=3)
_CLIP_FPS = 4.0
_NO_MIX = ("glm4v", "glm4v_moe")
"""Whose Hugging Face classes refuse images beside videos."""


@dataclass(frozen=True)
class Case:
    """A prompt with a placeholder for each of its media."""

    prompt: str
    images: Sequence[Image.Image] = ()
    videos: Sequence[Frames] = ()

    @property
    def input(self) -> dict[str, Any]:
        """What ``LLM.generate`` takes."""
        videos = [(video.pixels, {"fps": video.fps}) for video in self.videos]
        return {"prompt": self.prompt, "multi_modal_data": {"image": list(self.images), "video": videos}}


class Setup(NamedTuple):
    """How an engine is run."""

    ranks: int
    mode: EncoderMode


class Found(NamedTuple):
    """An engine's answer beside Hugging Face's.

    Attributes:
        has_same_tokens: whether all greedy tokens are the same.
        difference: largest one between log-probabilities of the likeliest tokens, over all steps before the first
            token that is another.
        prompt_difference: the same of the prompt's own tokens and the likeliest in their places, if they were asked
            for.
    """

    has_same_tokens: bool
    difference: float
    prompt_difference: float


class EngineResult(NamedTuple):
    """What an engine answered.

    Attributes:
        alone: to each prompt by itself.
        batch: to all in one batch, in which every second prompt is scored.
        num_cut_plans: times that its encoder's ranks shared a unit.
    """

    alone: dict[str, Found]
    batch: dict[str, Found]
    num_cut_plans: int


def make_cases(reference: Reference, *, scale: float = 1.0) -> dict[str, Case]:
    """One prompt of each kind that the family, and Hugging Face's class, takes, from the chat template.

    Args:
        reference: the model.
        scale: of the sides of all pictures.
    """

    def picture(height: int, width: int, seed: int) -> Image.Image:
        return Image.fromarray(_moving(1, height * scale, width * scale, seed)[0])

    one = picture(224, 308, 1)
    several = [picture(308, 196, 2), picture(84, 420, 3), picture(140, 140, 4)]
    frames = _moving(7, 112 * scale, 168 * scale, 5)
    clip = Frames(frames, _CLIP_FPS, [index / _CLIP_FPS for index in range(len(frames))])
    cases = {
        "text": Case(_prompt(reference, "What do you see in this image? Describe it.")),
        "1 image": Case(_prompt(reference, "What is this?", "image"), [one]),
        "3 images": Case(_prompt(reference, "Compare them.", *["image"] * 3), several),
    }
    if reference.facts.video:
        cases["1 video"] = Case(_prompt(reference, "What happens?", "video"), [], [clip])
    if reference.facts.video and reference.facts.model_type not in _NO_MIX:
        cases["image + video"] = Case(_prompt(reference, "Is it in there?", "image", "video"), [several[2]], [clip])
    return cases


def _prompt(reference: Reference, text: str, *media: str) -> str:
    content = [*({"type": kind} for kind in media), {"type": "text", "text": text}]
    return reference.chat_prompt([{"role": "user", "content": content}])


def _moving(count: int, height: float, width: float, seed: int) -> np.ndarray:
    """A soft pattern that moves to the right: uint8 [count, height, width, 3]."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 7, 3), dtype=np.uint8)
    picture = np.array(Image.fromarray(coarse).resize((round(width), round(height)), Image.Resampling.BICUBIC))
    return np.stack([np.roll(picture, 9 * index, axis=1) for index in range(count)])


def continuations(reference: Reference, cases: Mapping[str, Case]) -> dict[str, Continuation]:
    """What Hugging Face's model answers."""
    return {name: reference.go_on(case.prompt, case.images, case.videos) for name, case in cases.items()}


def logit_differences(folder: Path, reference: Reference, cases: Mapping[str, Case]) -> dict[str, float]:
    """Largest difference of logits, of all tokens of each prompt, from our model on one rank without an engine."""
    loaded = load_model(folder, dtype=torch.float32, device=CPU)
    found = {}
    for name, prompt in asyncio.run(_prepare(folder, cases)).items():
        case = cases[name]
        expected = reference.logits(case.prompt, case.images, case.videos)
        with torch.inference_mode():
            [hidden] = run_decoder(loaded, [prompt], dtype=torch.float32)
            found[name] = (loaded.model.compute_logits(hidden) - expected).abs().max().item()
    return found


async def _prepare(folder: Path, cases: Mapping[str, Case]) -> dict[str, Prompt]:
    """Token ids, media and pixels, as an engine has them."""
    engine = await AsyncLLM.start(EngineConfig(model=str(folder), dtype="float32", kv_cache_memory_bytes=2**24))
    made = {}
    try:
        for name, case in cases.items():
            [parsed] = as_prompts(case.input)
            ready = await engine.prepare_completion(**parsed._asdict())
            pixels = [np.concatenate([read_rows(unit.pixels) for unit in item.units]) for item in ready.items]
            made[name] = Prompt(ready.token_ids, ready.items, tuple(pixels))
            await engine.release(ready)
    finally:
        await engine.shutdown()
    return made


def compare_engine(
    folder: Path, setup: Setup, cases: Mapping[str, Case], expected: Mapping[str, Continuation], **settings: Any
) -> EngineResult:
    """What an engine answers beside what is expected.

    Args:
        folder: the checkpoint.
        setup: of the engine.
        cases: the prompts.
        expected: Hugging Face's answers to them.
        settings: further ones of the engine; nothing is kept from one prompt to the next.
    """
    no_caches = {"enable_prefix_caching": False, "mm_encoder_cache_gb": 0}
    ranks = {"tensor_parallel_size": setup.ranks, "mm_encoder_tp_mode": setup.mode}
    with LLM(str(folder), dtype="float32", **ranks, **no_caches, **settings) as llm:
        alone = [llm.generate(case.input, _SCORED, use_tqdm=False)[0] for case in cases.values()]
        params = [_SCORED if index % 2 else _GREEDY for index in range(len(cases))]
        batch = llm.generate([case.input for case in cases.values()], params, use_tqdm=False)
        num_cut = sum(count for reason, count in llm.stats.plan_reasons.items() if "cut by rows" in reason)
    first, second = (
        {name: _beside(answer, expected[name]) for name, answer in zip(cases, answers, strict=True)}
        for answers in (alone, batch)
    )
    return EngineResult(first, second, num_cut)


def _beside(output: RequestOutput, expected: Continuation) -> Found:
    answer = output.outputs[0]
    assert answer.logprobs is not None
    largest = 0.0
    steps = zip(answer.token_ids, expected.tokens, answer.logprobs, expected.logits.log_softmax(-1), strict=True)
    for token, wanted, likeliest, logprobs in steps:
        largest = max(largest, _difference(likeliest, logprobs))
        if token != wanted:
            break
    return Found(answer.token_ids == expected.tokens, largest, _prompt_difference(output, expected.prompt_logits))


def most_difference(logits: Tensor) -> float:
    """Between log-probabilities of logits [n, vocabulary] and of such as are equal to them but for rounding."""
    return 2 * most_rounding(logits).max().item()  # of the logit, and of the sum over the vocabulary


def possible_ranks(logprobs: Tensor, token: int, difference: float) -> range:
    """Ranks that a token can have if its log-probability and the others' may be off by so much."""
    num_better = int((logprobs > logprobs[token] + 2 * difference).sum())
    num_as_good = int((logprobs >= logprobs[token] - 2 * difference).sum())
    return range(num_better + 1, num_as_good + 1)


def _difference(likeliest: Mapping[int, Logprob], logprobs: Tensor) -> float:
    return max(abs(own.logprob - logprobs[token].item()) for token, own in likeliest.items())


def _prompt_difference(output: RequestOutput, logits: Tensor) -> float:
    """Between a scored prompt and Hugging Face's; ranks must be the same but where two are as good as equal."""
    if output.prompt_logprobs is None:
        return 0.0
    first, *scored = output.prompt_logprobs
    assert first is None
    largest, difference = 0.0, most_difference(logits)
    for token, likeliest, logprobs in zip(
        output.prompt_token_ids[1:], scored, logits[:-1].log_softmax(-1), strict=True
    ):
        own = likeliest[token]
        if token >= len(logprobs):  # a placeholder that no answer can have
            assert (own.logprob, own.rank) == (-math.inf, len(logprobs) + 1)
            likeliest = {other: entry for other, entry in likeliest.items() if other != token}
        else:
            assert own.rank in possible_ranks(logprobs, token, difference)
        assert len(likeliest) >= 3
        largest = max(largest, _difference(likeliest, logprobs))
    return largest

"""``chiasm bench latency``: whole batches, one after another, through the offline API."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from chiasm.bench.settings import llm_settings
from chiasm.config.engine import EngineConfig
from chiasm.llm.offline import LLM
from chiasm.schema.facts import ModelFacts
from chiasm.schema.profile import EngineProfile
from chiasm.schema.sampling import SamplingParams

_PERCENTILES = (10, 25, 50, 75, 90, 99)
_BLOCK_SIDE = 8


class Batch(msgspec.Struct, frozen=True):
    """What is asked.

    Attributes:
        num_prompts: at once.
        input_len: tokens of text in each.
        output_len: tokens of each answer.
        num_images: in each.
        image_height: of every image, in pixels.
        image_width: likewise.
    """

    num_prompts: int
    input_len: int
    output_len: int
    num_images: int
    image_height: int
    image_width: int

    def prompts(self, facts: ModelFacts, seed: int) -> list[dict[str, Any]]:
        """As ``LLM.generate`` takes them; another seed gives other tokens and images, so that no cache knows them."""
        rng = np.random.default_rng(seed)
        placeholder = facts.image_token_id if facts.tiles is None else facts.tiles.token_id
        words = np.setdiff1d(np.arange(facts.vocab_size), facts.media_token_ids)
        return [
            {
                "prompt_token_ids": [placeholder] * self.num_images + rng.choice(words, self.input_len).tolist(),
                "multi_modal_data": {"image": [self._image(rng) for _ in range(self.num_images)]},
            }
            for _ in range(self.num_prompts)
        ]

    def _image(self, rng: np.random.Generator) -> np.ndarray[Any, Any]:
        """Blocks of noise, uint8 [height, width, 3]."""
        height, width = self.image_height, self.image_width
        shape = (-(-height // _BLOCK_SIDE), -(-width // _BLOCK_SIDE), 3)
        blocks = rng.integers(0, 256, shape, dtype=np.uint8)
        return np.ascontiguousarray(blocks.repeat(_BLOCK_SIDE, 0).repeat(_BLOCK_SIDE, 1)[:height, :width])


class Latency(msgspec.Struct, frozen=True):
    """What was found, in seconds for a batch; vLLM's benchmark has its names for the first four.

    Attributes:
        model_id: of the checkpoint.
        avg_latency: mean of all that count.
        latencies: of each.
        percentiles: by percent.
        median_latency: of all that count.
        batch: that was asked.
        profile: of one more batch; None where nobody asked.
    """

    model_id: str
    avg_latency: float
    latencies: tuple[float, ...]
    percentiles: dict[int, float]
    median_latency: float
    batch: Batch
    profile: EngineProfile | None


def measure_latency(
    config: EngineConfig,
    batch: Batch,
    *,
    num_warm: int,
    num_timed: int,
    profile_folder: Path | None = None,
    chat_template: str | None = None,
) -> Latency:
    """Run batches, each of other prompts.

    Args:
        config: the engine's settings; ``model`` is a folder.
        batch: what each asks.
        num_warm: batches that don't count.
        num_timed: batches that count.
        profile_folder: for the traces of one more batch; None for no profile.
        chat_template: see ``LLM``.

    Raises:
        UserError: if the model, a setting or the batch is at fault.
    """
    with LLM(config.model, chat_template=chat_template, **llm_settings(config)) as llm:
        seconds = list(_time_batches(llm, batch, num_warm + num_timed))[num_warm:]
        profile = None
        if profile_folder is not None:
            prompts = batch.prompts(llm.facts, num_warm + num_timed)
            llm.start_profile()
            _answer(llm, batch, prompts)
            profile = llm.stop_profile(profile_folder)
    return Latency(
        model_id=config.model,
        avg_latency=float(np.mean(seconds)),
        latencies=tuple(seconds),
        percentiles={each: float(np.percentile(seconds, each)) for each in _PERCENTILES},
        median_latency=float(np.median(seconds)),
        batch=batch,
        profile=profile,
    )


def _time_batches(llm: LLM, batch: Batch, count: int) -> Iterator[float]:
    for number in range(count):
        prompts = batch.prompts(llm.facts, number)
        start = time.perf_counter()
        _answer(llm, batch, prompts)
        yield time.perf_counter() - start


def _answer(llm: LLM, batch: Batch, prompts: list[dict[str, Any]]) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=batch.output_len, ignore_eos=True)
    for output in llm.generate(prompts, sampling, use_tqdm=False):
        assert len(output.outputs[0].token_ids) == batch.output_len, output.outputs[0].finish_reason

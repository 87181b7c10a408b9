"""``chiasm bench throughput``: requests that are all there at once, through the offline API."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import msgspec

from chiasm.bench.datasets.sample import Sample
from chiasm.bench.settings import llm_settings
from chiasm.config.engine import EngineConfig
from chiasm.llm.offline import LLM
from chiasm.schema.output import EngineStats, RequestOutput
from chiasm.schema.sampling import SamplingParams


class Throughput(msgspec.Struct, frozen=True):
    """What was found; the first six fields have the names that vLLM's benchmark writes.

    Attributes:
        model_id: of the checkpoint.
        elapsed_time: seconds from the first request, still a message, to the last token.
        num_requests: that were answered.
        total_num_tokens: of prompts, media included, and answers.
        requests_per_second: over the elapsed time.
        tokens_per_second: likewise, of all tokens.
        num_prompt_tokens: of the prompts.
        num_output_tokens: of the answers.
        output_tokens_per_second: over the elapsed time.
        num_units: images and frames that were encoded.
        encoder_seconds: by rank, in the vision encoder.
    """

    model_id: str
    elapsed_time: float
    num_requests: int
    total_num_tokens: int
    requests_per_second: float
    tokens_per_second: float
    num_prompt_tokens: int
    num_output_tokens: int
    output_tokens_per_second: float
    num_units: int
    encoder_seconds: tuple[float, ...]


def measure_throughput(
    config: EngineConfig,
    samples: Sequence[Sample],
    *,
    sampling: Mapping[str, Any],
    chat_template: str | None = None,
    progress: bool = True,
) -> Throughput:
    """Answer all requests; one more, which doesn't count, goes before.

    Args:
        config: the engine's settings; ``model`` is a folder.
        samples: the requests.
        sampling: fields of ``SamplingParams`` for all of them, but for ``max_tokens``.
        chat_template: see ``LLM``.
        progress: whether to show a bar.

    Raises:
        UserError: if the model, a setting or a request is at fault.
    """
    conversations = [[{"role": "user", "content": sample.content}] for sample in samples]
    params = [SamplingParams(**sampling, max_tokens=sample.output_len) for sample in samples]
    with LLM(config.model, chat_template=chat_template, **llm_settings(config)) as llm:
        llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=1), use_tqdm=False)
        before, start = llm.stats, time.perf_counter()
        outputs = llm.chat(conversations, params, use_tqdm=progress)
        seconds = time.perf_counter() - start
        return _found(config.model, outputs, seconds, before, llm.stats)


def _found(
    model: str, outputs: Sequence[RequestOutput], seconds: float, before: EngineStats, after: EngineStats
) -> Throughput:
    num_in = sum(len(output.prompt_token_ids) for output in outputs)
    num_out = sum(len(answer.token_ids) for output in outputs for answer in output.outputs)
    return Throughput(
        model_id=model,
        elapsed_time=seconds,
        num_requests=len(outputs),
        total_num_tokens=num_in + num_out,
        requests_per_second=len(outputs) / seconds,
        tokens_per_second=(num_in + num_out) / seconds,
        num_prompt_tokens=num_in,
        num_output_tokens=num_out,
        output_tokens_per_second=num_out / seconds,
        num_units=after.units_encoded - before.units_encoded,
        encoder_seconds=tuple(
            now - then for now, then in zip_longest(after.encoder_seconds, before.encoder_seconds, fillvalue=0.0)
        ),
    )


def throughput_text(found: Throughput) -> str:
    """As vLLM prints it, and what the encoder did."""
    encoder = ", ".join(f"{seconds:.2f}" for seconds in found.encoder_seconds)
    return "\n".join(
        [
            f"Throughput: {found.requests_per_second:.2f} requests/s, {found.tokens_per_second:.2f} total tokens/s, "
            f"{found.output_tokens_per_second:.2f} output tokens/s",
            f"Total num prompt tokens:  {found.num_prompt_tokens}",
            f"Total num output tokens:  {found.num_output_tokens}",
            f"Elapsed time (s):         {found.elapsed_time:.2f}",
            f"Images and frames encoded: {found.num_units}; seconds in the encoder by rank: {encoder}",
        ]
    )

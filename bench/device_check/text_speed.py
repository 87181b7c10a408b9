"""How fast a language model of 8 billion parameters is on the device: start, decoding, prefill, and the kernels."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import torch

from bench.device_check.families import differences, judged
from bench.device_check.machine import peaks_of
from bench.device_check.models import SMALL, eight_billion, write_model
from bench.device_check.probe import Outcome, Probe
from bench.device_check.report import NUM_KERNELS
from bench.device_check.timing import longest_kernels
from chiasm.config.engine import EngineConfig
from chiasm.dist.group import SOLO
from chiasm.engine.core.core import EngineCore
from chiasm.engine.runner.decode_graphs import DecodeGraphs
from chiasm.engine.runner.runner import Runner
from chiasm.layers.weight import Placement
from chiasm.models.loader import build_model
from chiasm.models.registry import open_checkpoint
from tests.engine.driven import Answer, ask, request, running
from tests.prompts import make_prompt

_TERA, _GIGA, _MILLI = 1e12, 1e9, 1e-3
_NUM_CHECKED_TOKENS = 64  # before answers whose log-probabilities are compared
_STAGES = {
    "_load": "weights made",
    "_record_encoder": "encoder passes recorded",
    "info": "memory measured",
    "measure_encoder": "encoder measured",
    "allocate": "decode steps recorded",
}
"""Of a start, by the runner's methods."""


class Sizes(NamedTuple):
    """What is measured.

    Attributes:
        num_sequences: that decode side by side.
        num_context_tokens: of each.
        num_steps: that are timed.
        num_prompts: that are prefilled together.
        num_prompt_tokens: of each.
        cache_bytes: of the KV cache.
    """

    num_sequences: tuple[int, ...]
    num_context_tokens: int
    num_steps: int
    num_prompts: int
    num_prompt_tokens: int
    cache_bytes: int

    @property
    def num_batched_tokens(self) -> int:
        """Of a step: all prompts that are prefilled together."""
        return self.num_prompts * self.num_prompt_tokens


_GPU_SIZES = Sizes((1, 8, 32, 64), 1024, 48, 4, 2048, 12 * 2**30)
_CPU_SIZES = Sizes((1, 4), 64, 8, 2, 128, 2**26)


class TextWork(NamedTuple):
    """What a language model has to compute and to read.

    Attributes:
        num_layer_parameters: of its layers, which every token goes through.
        num_head_parameters: of its output projection, which only tokens go through that are sampled from.
        token_bytes: of keys and values, of all layers.
        attention_flops: for a pair of a query and a key, of all layers.
        itemsize: bytes of a weight.
    """

    num_layer_parameters: int
    num_head_parameters: int
    token_bytes: int
    attention_flops: int
    itemsize: int

    @classmethod
    def of(cls, folder: Path, dtype: torch.dtype) -> TextWork:
        """By the shapes of a model, of which no weights are made."""
        placement = Placement(SOLO, dtype, torch.device("meta"))
        model = build_model(open_checkpoint(folder), placement, placement, "dummy")
        sizes = {name: weight.numel() for name, weight in model.named_parameters() if not name.startswith("visual.")}
        head, embedding = (
            sum(size for name, size in sizes.items() if part in name) for part in ("lm_head", "embed_tokens")
        )
        width = model.num_layers * model.head_dim
        token_bytes = 2 * width * model.num_kv_heads * dtype.itemsize
        layers = sum(sizes.values()) - head - embedding
        return cls(layers, head, token_bytes, 4 * width * model.num_heads, dtype.itemsize)

    def decode_bytes(self, num_sequences: int, num_context_tokens: float) -> float:
        """Read in a step: the weights once, and all keys and values."""
        weights = self.num_layer_parameters + self.num_head_parameters
        return weights * self.itemsize + num_sequences * num_context_tokens * self.token_bytes

    def prefill_flops(self, num_prompts: int, num_tokens: int) -> float:
        """Of prompts: products, of the output projection for last tokens only, and attention to what comes before."""
        products = 2 * num_prompts * (self.num_layer_parameters * num_tokens + self.num_head_parameters)
        return products + num_prompts * self.attention_flops * num_tokens * (num_tokens + 1) / 2


def measure_text(probe: Probe) -> None:
    """Start an engine with random weights, and time it step by step."""
    sizes = _GPU_SIZES if probe.is_gpu else _CPU_SIZES
    config = eight_billion() if probe.is_gpu else SMALL["qwen3_vl"]()
    folder = write_model(config, probe.scratch / "speed", max_patches=65536 if probe.is_gpu else 2048)
    dtype = torch.bfloat16 if probe.is_gpu else torch.float32
    work = TextWork.of(folder, dtype)
    begin = time.perf_counter()
    with _timed_stages(partial(_report_stage, probe)), running(_config(probe, folder, sizes)) as core:
        probe.speed("start of an engine, after imports", time.perf_counter() - begin, "s")
        for line in core.ready.summary:
            probe.fact("speed", line)
        measured = _Measured(probe, core, sizes, work)
        probe.check("prefill", measured.prefill)
        for count in sizes.num_sequences:
            probe.check(f"decoding, {count} at a time", partial(measured.decode, count))
        for count in sizes.num_sequences:
            probe.check(f"log-probabilities, {count} at a time", partial(measured.check_numbers, count))
        probe.check("kernels of decoding", measured.decode_kernels)
        probe.check("kernels of prefill", measured.prefill_kernels)


def _config(probe: Probe, folder: Path, sizes: Sizes) -> EngineConfig:
    return EngineConfig(
        model=str(folder), load_format="dummy", device=probe.device.type,
        dtype="bfloat16" if probe.is_gpu else "float32", kv_cache_memory_bytes=sizes.cache_bytes,
        max_num_seqs=max(sizes.num_sequences), max_num_batched_tokens=sizes.num_batched_tokens, max_model_len=8192,
        enable_prefix_caching=False,
    )  # fmt: skip


def _report_stage(probe: Probe, name: str, seconds: float) -> None:
    probe.speed(f"start: {name}", seconds, "s")


@contextmanager
def _timed_stages(report: Callable[[str, float], None]) -> Iterator[None]:
    """Tell how long each stage of a start takes."""

    def timed(method: str) -> Callable[..., Any]:
        call = getattr(Runner, method)

        def run(*arguments: Any) -> Any:
            begin = time.perf_counter()
            result = call(*arguments)
            if torch.cuda.is_initialized():
                torch.cuda.synchronize()
            report(_STAGES[method], time.perf_counter() - begin)
            return result

        return run

    with patch.multiple(Runner, **{method: timed(method) for method in _STAGES}):
        yield


class _Measured:
    """An engine and what is known of its model."""

    def __init__(self, probe: Probe, core: EngineCore, sizes: Sizes, work: TextWork) -> None:
        self._probe = probe
        self._core = core
        self._sizes = sizes
        self._work = work
        self._peaks = peaks_of(probe.device)
        self._num_asked = 0

    def prefill(self) -> Outcome:
        """All prompts in one step; the second time counts."""
        sizes = self._sizes
        for _ in range(2):
            self._add(sizes.num_prompts, sizes.num_prompt_tokens, 1)
            seconds, num_steps = self._run()
        flops = self._work.prefill_flops(sizes.num_prompts, sizes.num_prompt_tokens)
        words = f"prefill, {sizes.num_prompts} prompts of {sizes.num_prompt_tokens} tokens"
        self._probe.speed(words, 1e3 * seconds, "ms")
        self._probe.speed(words, sizes.num_batched_tokens / seconds, "tokens/s")
        self._probe.speed(words, flops / seconds / _TERA, "TFLOP/s", self._peaks.tflops)
        return Outcome(num_steps == 1, f"{num_steps} step, in which all were to be")

    def decode(self, count: int) -> Outcome:
        """Steps in which every sequence gets a token; the median counts."""
        sizes = self._sizes
        self._begin_decoding(count, sizes.num_steps)
        times = [self._step() for _ in range(sizes.num_steps)]
        num_tokens = self._num_new_tokens()
        self._finish()
        seconds = median(times)
        num_bytes = self._work.decode_bytes(count, sizes.num_context_tokens + sizes.num_steps / 2)
        words = f"decoding, {count} at a time, {sizes.num_context_tokens} tokens before"
        self._probe.speed(words, seconds / _MILLI, "ms a step")
        self._probe.speed(words, count / seconds, "tokens/s")
        self._probe.speed(words, num_bytes / seconds / _GIGA, "GB/s", self._peaks.gbs)
        slow = f"longest {max(times) / _MILLI:.2f} ms"
        return Outcome(
            num_tokens == count * sizes.num_steps, f"{num_tokens} tokens in {sizes.num_steps} steps; {slow}"
        )

    def check_numbers(self, count: int) -> Outcome:
        """They are numbers, and the same from graphs as without: such large batches have no other reference."""
        once = self._answers(count)
        with patch.object(DecodeGraphs, "can_run", lambda *_: False):
            again = self._answers(count)
        return judged(differences(once, again), "bfloat16", has_experts=False)

    def _answers(self, count: int) -> dict[str, Answer]:
        prompts = [make_prompt(self._core.ready.facts, [_NUM_CHECKED_TOKENS], seed=seed) for seed in range(count)]
        folder = self._probe.scratch
        return ask(
            self._core,
            [request(f"check-{i}", prompt, folder, max_tokens=4, logprobs=5) for i, prompt in enumerate(prompts)],
        )

    def decode_kernels(self) -> Outcome:
        """Of some steps with the most sequences but one size."""
        count, num_steps = self._sizes.num_sequences[-2], 4
        self._begin_decoding(count, num_steps)
        return self._kernels(
            f"{num_steps} steps of decoding, {count} at a time", lambda: [self._step() for _ in range(num_steps)]
        )

    def prefill_kernels(self) -> Outcome:
        """Of one step."""
        sizes = self._sizes
        self._add(sizes.num_prompts, sizes.num_prompt_tokens, 1)
        return self._kernels(f"prefill of {sizes.num_batched_tokens} tokens", self._step)

    def _kernels(self, during: str, call: Callable[[], object]) -> Outcome:
        kernels = longest_kernels(call, self._probe.device, NUM_KERNELS)
        self._finish()
        for kernel in kernels:
            self._probe.kernel(during, kernel.name, kernel.calls, kernel.seconds, kernel.share)
        return Outcome(bool(kernels), f"{len(kernels)} listed")

    def _begin_decoding(self, count: int, num_steps: int) -> None:
        """Prefill so many sequences, until each has a token and so many steps to go at least."""
        before = self._num_asked
        num_prefills = -(-count * self._sizes.num_context_tokens // self._sizes.num_batched_tokens)
        self._add(count, self._sizes.num_context_tokens, num_steps + 2 * num_prefills + 1)
        answered: set[str] = set()
        while len(answered) < self._num_asked - before and self._core.has_work:
            self._core.step()
            answered |= {delta.request_id for delta in self._core.take_deltas() if delta.token_ids}

    def _add(self, count: int, num_tokens: int, num_answer_tokens: int) -> None:
        for _ in range(count):
            prompt = make_prompt(self._core.ready.facts, [num_tokens], seed=self._num_asked)
            name = f"speed-{self._num_asked}"
            self._core.add(request(name, prompt, self._probe.scratch, max_tokens=num_answer_tokens))
            self._num_asked += 1

    def _step(self) -> float:
        begin = time.perf_counter()
        self._core.step()
        return time.perf_counter() - begin

    def _run(self) -> tuple[float, int]:
        """Seconds and steps until there is no more to do."""
        times = []
        while self._core.has_work:
            times.append(self._step())
        return sum(times), len(times)

    def _num_new_tokens(self) -> int:
        """Since the last look."""
        return sum(len(delta.token_ids) for delta in self._core.take_deltas())

    def _finish(self) -> None:
        """Let all answers end."""
        self._run()
        self._core.take_deltas()

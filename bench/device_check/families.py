"""Engines of a family on the device, held against its model in float64 on the CPU, a token at a time.

The reference has no engine: no cache that is read by steps, no chunks, no batches, no graphs. It is given the
answer's tokens and tells how likely each was, so that one token that is another does not spoil those behind it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn

from bench.device_check.encoder_passes import compare_passes
from bench.device_check.models import SMALL, write_model
from bench.device_check.probe import Outcome, Probe, Skip
from chiasm.config.engine import DTypeName, EncoderMode, EngineConfig
from chiasm.engine.core.core import EngineCore
from chiasm.engine.runner.decode_graphs import DecodeGraphs
from chiasm.engine.runner.encoder_stream import SameStream
from chiasm.engine.runner.runner import Runner
from chiasm.engine.runner.steps import HostStep
from chiasm.models.loader import LoadedModel, load_model
from chiasm.models.registry import open_checkpoint
from chiasm.schema.facts import ModelFacts
from chiasm.schema.plan import StepPlan
from chiasm.schema.request import EngineRequest
from tests.engine.driven import Answer, ask, request, running
from tests.invariants import run_decoder
from tests.prompts import Grid, Prompt, make_prompt

_CPU = torch.device("cpu")
_NUM_TOKENS = 12
_NUM_TOP = 20
_RIGHTLY_ANEW = ("grouped products take bfloat16", "grouped products for compute capabilities")
"""Why decode steps may be launched anew on a GPU that is all right."""
_LAUNCHES = ("attention: ", "encoder attention: ", "decode steps: ", "encoder passes: ")  # of the lines at a start
_NATS: dict[DTypeName, float] = {"float32": 1e-3, "bfloat16": 0.1}
"""By how much log-probabilities may differ."""


class Tolerance(NamedTuple):
    """What may be beyond that.

    Attributes:
        share: of all tokens that must be within.
        num_far: prompts of which most tokens are not.
    """

    share: float
    num_far: int


_EXACT, _ROUNDED = Tolerance(1.0, 0), Tolerance(0.9, 0)
_ROUNDED_EXPERTS = Tolerance(0.7, 1)
"""A near tie gives a token to another expert, which those behind it see: of five tokens it can be the first one."""


class Setup(NamedTuple):
    """How an engine is started."""

    dtype: DTypeName
    enforce_eager: bool = False
    has_side_stream: bool = True
    num_ranks: int = 1
    encoder_mode: EncoderMode = "auto"


class Family:
    """A family's small model, its reference, and engines of it on a device.

    Args:
        name: of the family.
        scratch: for its files.
        device: to be checked.
    """

    def __init__(self, name: str, scratch: Path, device: torch.device) -> None:
        self.folder = write_model(SMALL[name](), scratch / name)
        self.chosen: dict[Setup, tuple[str, ...]] = {}
        self.num_steps: dict[Setup, Counter[str]] = {}
        self.has_experts = name in ("qwen3_vl_moe", "glm4v_moe", "llama4")
        self._has_long_prompts = name == "qwen3_vl"
        self._device = device
        self._answers: dict[Setup, dict[str, Answer]] = {}

    @cached_property
    def facts(self) -> ModelFacts:
        """Of the small model."""
        return open_checkpoint(self.folder).facts

    @cached_property
    def prompts(self) -> dict[str, Prompt]:
        """Long and short ones, with images and without; together more than a step takes."""
        facts = self.facts
        large, small = _grids(facts)
        pieces: dict[str, list[int | Grid]] = {
            "long text": [400],
            "one image": [40, large, 30],
            "two images": [200, small, 5, small, 2],
            "five tokens": [5],
            "mostly image": [1, small, 1],
        }
        if self._has_long_prompts:
            pieces |= {"long history": [2000], **{f"text {index}": [20 + index] for index in range(8)}}
        return {name: make_prompt(facts, own, seed=seed) for seed, (name, own) in enumerate(pieces.items())}

    def answers(self, setup: Setup) -> dict[str, Answer]:
        """What an engine answers to the prompts, greedily, with log-probabilities."""
        if setup not in self._answers:
            with _counted_steps() as self.num_steps[setup], self.engine(setup) as core:
                self.chosen[setup] = core.ready.summary
                self._answers[setup] = ask(core, self._requests())
        return self._answers[setup]

    @contextmanager
    def engine(self, setup: Setup) -> Iterator[EngineCore]:
        """An engine of the small model."""
        config = EngineConfig(
            model=str(self.folder), load_format="dummy", device=self._device.type, dtype=setup.dtype,
            enforce_eager=setup.enforce_eager, kv_cache_memory_bytes=2**26, max_num_seqs=16,
            max_num_batched_tokens=256, tensor_parallel_size=setup.num_ranks, mm_encoder_tp_mode=setup.encoder_mode,
        )  # fmt: skip
        before = patch("chiasm.engine.runner.launch.SideStream", lambda _: SameStream())
        with nullcontext() if setup.has_side_stream else before, running(config) as core:
            yield core

    def _requests(self) -> Sequence[EngineRequest]:
        return [
            request(name, prompt, self.folder, max_tokens=_NUM_TOKENS, logprobs=_NUM_TOP)
            for name, prompt in self.prompts.items()
        ]

    def reference(self, dtype: DTypeName) -> LoadedModel:
        """In float64 on the CPU, with weights that are rounded as those of engines in ``dtype`` are."""
        loaded = load_model(self.folder, dtype=torch.float64, device=_CPU, load_format="dummy")
        assert isinstance(loaded.model, nn.Module)
        for weight in loaded.model.parameters():
            weight.data = weight.data.to(getattr(torch, dtype)).double()
        return loaded

    @torch.inference_mode()
    def expected(self, reference: LoadedModel, name: str, answer: Sequence[int]) -> Tensor:
        """Log-probabilities [tokens of the answer, vocabulary] of what comes in each place of an answer."""
        prompt = self.prompts[name]
        whole = dataclasses.replace(prompt, token_ids=(*prompt.token_ids, *answer[:-1]))
        [hidden] = run_decoder(reference, [whole], dtype=torch.float64)
        logits = reference.model.compute_logits(hidden[len(prompt.token_ids) - 1 :])
        return logits.double().log_softmax(-1)


@contextmanager
def _counted_steps() -> Iterator[Counter[str]]:
    """Decode steps that are played from graphs meanwhile, and encoder steps beside the language model."""
    counts: Counter[str] = Counter()
    play, reads = DecodeGraphs.run, Runner._reads_what_it_encodes

    def played(self: DecodeGraphs, host: HostStep) -> Tensor:
        counts["in graphs"] += 1
        return play(self, host)

    def asked(self: Runner, plan: StepPlan) -> bool:
        is_read = reads(self, plan)
        counts["beside"] += plan.vision is not None and not is_read
        return is_read

    with patch.object(DecodeGraphs, "run", played), patch.object(Runner, "_reads_what_it_encodes", asked):
        yield counts


def check_family(probe: Probe, name: str) -> None:
    """Answers in float32 and bfloat16, and that graphs and streams change nothing."""
    family = Family(name, probe.scratch, probe.device)
    probe.check("answers in bfloat16", partial(against_reference, family, Setup("bfloat16")))
    probe.check("answers in float32", partial(against_reference, family, Setup("float32")))
    for line in family.chosen.get(Setup("bfloat16"), ()):
        if line.startswith(_LAUNCHES):
            probe.fact(name, line)
    for dtype in ("bfloat16", "float32"):
        probe.check(
            f"decode steps in CUDA graphs and launched anew, {dtype}", partial(graphs_and_none, probe, family, dtype)
        )
    probe.check("encoder on a stream of its own and before", partial(stream_and_none, probe, family))
    probe.check(
        "encoder passes in CUDA graphs and launched anew", partial(compare_passes, family.folder, probe.device)
    )


def against_reference(family: Family, setup: Setup) -> Outcome:
    """Each token is one of the likeliest, and log-probabilities are those of the reference."""
    reference = family.reference(setup.dtype)
    errors: dict[str, list[float]] = {}
    for name, answer in family.answers(setup).items():
        if len(answer.token_ids) != _NUM_TOKENS or len(answer.logprobs) != _NUM_TOKENS:
            return Outcome(is_good=False, detail=f"{name}: {len(answer.token_ids)} tokens, not {_NUM_TOKENS}")
        expected = family.expected(reference, name, answer.token_ids)
        own = errors.setdefault(name, [])
        for token, told, row in zip(answer.token_ids, answer.logprobs, expected, strict=True):
            ids, values = zip(*told.top, strict=True)
            behind = float(row.max() - row[token])
            own.append(max(behind, float((torch.tensor(values).double() - row[list(ids)]).abs().max())))
    return judged(errors, setup.dtype, has_experts=family.has_experts)


def graphs_and_none(probe: Probe, family: Family, dtype: DTypeName) -> Outcome:
    """Decode steps that are recorded give what they give launched anew."""
    if not probe.is_gpu:
        raise Skip("there are no CUDA graphs on a CPU")
    setup = Setup(dtype)
    family.answers(setup)
    line = next(line for line in family.chosen[setup] if line.startswith("decode steps: "))
    if any(words in line for words in _RIGHTLY_ANEW):
        raise Skip(line)
    if line != "decode steps: CUDA graphs":
        return Outcome(is_good=False, detail=line)
    outcome = _same_answers(family, setup, setup._replace(enforce_eager=True))
    num_played = family.num_steps[setup]["in graphs"]
    return Outcome(outcome.is_good and num_played > 0, f"{outcome.detail}; {num_played} steps in graphs")


def stream_and_none(probe: Probe, family: Family) -> Outcome:
    """Encoding beside the language model gives what encoding before it gives."""
    if not probe.is_gpu:
        raise Skip("there are no streams on a CPU")
    setup = Setup("float32")
    outcome = _same_answers(family, setup, setup._replace(has_side_stream=False))
    num_beside = family.num_steps[setup]["beside"]
    return Outcome(outcome.is_good and num_beside > 0, f"{outcome.detail}; {num_beside} steps beside")


def _same_answers(family: Family, first: Setup, second: Setup) -> Outcome:
    errors = differences(family.answers(first), family.answers(second))
    return judged(errors, first.dtype, has_experts=family.has_experts)


def differences(one: Mapping[str, Answer], other: Mapping[str, Answer]) -> dict[str, list[float]]:
    """By how much log-probabilities of the same requests differ, in nats, while the tokens before are the same."""
    errors: dict[str, list[float]] = {}
    for name, answer in one.items():
        own = errors.setdefault(name, [])
        for token, told, beside, expected in zip(
            answer.token_ids, answer.logprobs, other[name].token_ids, other[name].logprobs, strict=True
        ):
            known = dict(expected.top)
            own.append(max(abs(value - known[each]) for each, value in told.top if each in known))
            if token != beside:
                break
    return errors


def judged(errors: Mapping[str, Sequence[float]], dtype: DTypeName, *, has_experts: bool) -> Outcome:
    """Whether enough tokens are within the limit: in float32 all, else most, and half of those of each prompt.

    Args:
        errors: of each token of an answer, in nats, by prompt.
        dtype: of the engine.
        has_experts: whether it can give a token to another expert for a near tie.
    """
    limit, found = _NATS[dtype], torch.tensor([error for own in errors.values() for error in own])
    tolerance = _EXACT if dtype == "float32" else _ROUNDED_EXPERTS if has_experts else _ROUNDED
    far = [name for name, own in errors.items() if not median(own) <= limit]
    num_within = int((found <= limit).sum())
    words = (
        f"{num_within} of {len(found)} tokens within {limit:g} nats, at least {100 * tolerance.share:.0f} % must be; "
        f"largest {float(found.max()):.1e}"
    )
    if far:
        words += f"; most of {', '.join(far)} are not"
    return Outcome(num_within >= tolerance.share * len(found) and len(far) <= tolerance.num_far, words)


def _grids(facts: ModelFacts) -> tuple[Grid, Grid]:
    """Of a large and a small image: patches, or for families that take tiles these."""
    side = facts.encoder.tile_side
    if facts.encoder.canvas:
        return (1, 2, 2), (1, 1, 2)
    return ((5, side, side), (2, side, side)) if side else ((1, 32, 44), (1, 8, 12))

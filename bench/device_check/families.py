"""Engines of every family on the device against the same on the CPU in float32, by small random checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import lru_cache, partial
from pathlib import Path
from statistics import median
from typing import NamedTuple
from unittest.mock import patch

import torch

from bench.device_check.checks import Check, Outcome
from bench.device_check.encoder_passes import compare_passes
from chiasm.config.engine import DTypeName, EngineConfig
from chiasm.engine.runner.encoder_stream import SameStream
from chiasm.models.loader import load_model
from chiasm.schema.facts import ModelFacts
from chiasm.schema.request import EngineRequest
from tests.checkpoints.common import SavedModel
from tests.checkpoints.glm4v import save_glm4v
from tests.checkpoints.llama4 import save_llama4
from tests.checkpoints.mllama import save_mllama
from tests.checkpoints.qwen2 import save_qwen2_5_vl, save_qwen2_vl
from tests.checkpoints.qwen3_vl import save_qwen3_vl
from tests.engine.driven import Answer, answers, request
from tests.prompts import Grid, make_prompt

FAMILIES: dict[str, Callable[[Path], SavedModel]] = {
    "qwen2_5_vl": save_qwen2_5_vl,
    "qwen2_vl": save_qwen2_vl,
    "qwen3_vl": lambda folder: save_qwen3_vl(folder, has_experts=False),
    "qwen3_vl_moe": lambda folder: save_qwen3_vl(folder, has_experts=True),
    "glm4v": save_glm4v,
    "glm4v_moe": lambda folder: save_glm4v(folder, has_experts=True),
    "llama4": save_llama4,
    "mllama": save_mllama,
}
_NUM_TOKENS = 12
_LOGPROB_LIMIT = 0.1  # in nats, of the first token, in bfloat16


class _Setup(NamedTuple):
    """How an engine is started."""

    device: str
    dtype: DTypeName
    enforce_eager: bool = False
    has_side_stream: bool = True


class Family:
    """A family's checkpoint and what the engines answer.

    Args:
        name: of the family.
        folder: for its files.
        device: to be checked.
    """

    def __init__(self, name: str, folder: Path, device: torch.device) -> None:
        self._name = name
        self._folder = folder / name
        self._device = device.type
        self.answers = lru_cache(maxsize=None)(self._answers)

    def checks(self) -> Iterator[Check]:
        """Checks of whole engines."""
        on_device = _Setup(self._device, "float32")
        cpu = _Setup("cpu", "float32")
        yield f"{self._name}: greedy tokens, float32", partial(self._same_tokens, cpu, on_device)
        yield (
            f"{self._name}: log-probabilities, bfloat16",
            partial(self._close, cpu, _Setup(self._device, "bfloat16")),
        )
        eager = on_device._replace(enforce_eager=True)
        yield f"{self._name}: graphs on and off", partial(self._same_tokens, eager, on_device)
        same = on_device._replace(has_side_stream=False)
        yield f"{self._name}: encoder beside and before", partial(self._same_tokens, same, on_device)
        yield f"{self._name}: encoder passes in graphs, bfloat16", self._same_features

    def _same_features(self) -> Outcome:
        return compare_passes(self._model, torch.device(self._device))

    def _same_tokens(self, first: _Setup, second: _Setup) -> Outcome:
        tokens = [{name: one.token_ids for name, one in self.answers(setup).items()} for setup in (first, second)]
        num_equal = sum(tokens[0][name] == tokens[1][name] for name in tokens[0])
        return Outcome(tokens[0] == tokens[1], f"{num_equal} of {len(tokens[0])} answers equal")

    def _close(self, first: _Setup, second: _Setup) -> Outcome:
        """The median prompt counts: rounding can hand a near tie between experts to the other one."""
        largest = []
        for name, expected in self.answers(first).items():
            found = dict(self.answers(second)[name].first_top)
            shared = [abs(value - found[token]) for token, value in expected.first_top if token in found]
            largest.append(max(shared, default=float("inf")))
        middle = median(largest)
        detail = (
            f"of the first token's, median prompt {middle:.3f}, at most {_LOGPROB_LIMIT}; worst {max(largest):.3f}"
        )
        return Outcome(middle <= _LOGPROB_LIMIT, detail)

    def _answers(self, setup: _Setup) -> dict[str, Answer]:
        config = EngineConfig(
            model=str(self._model),
            device=setup.device,
            dtype=setup.dtype,
            enforce_eager=setup.enforce_eager,
            kv_cache_memory_bytes=2**24,
            max_num_seqs=4,
            max_num_batched_tokens=64,
        )
        stream = patch("chiasm.engine.runner.launch.SideStream", lambda _: SameStream())
        with nullcontext() if setup.has_side_stream else stream:
            return answers(config, self._requests)

    @property
    def _model(self) -> Path:
        folder = self._folder / "model"
        if not folder.exists():
            FAMILIES[self._name](folder)
        return folder

    @property
    def _requests(self) -> Sequence[EngineRequest]:
        facts = load_model(self._model, dtype=torch.float32, device=torch.device("cpu")).facts
        grid = _grid(facts)
        prompts = ([40], [9, grid, 3], [70, grid, 5, grid, 2], [5], [1, grid, 1])
        return [
            request(f"r{i}", make_prompt(facts, pieces), self._folder, max_tokens=_NUM_TOKENS, logprobs=20)
            for i, pieces in enumerate(prompts)
        ]


def _grid(facts: ModelFacts) -> Grid:
    """Of an image: patches, or for families that take tiles these."""
    side = facts.encoder.tile_side
    if facts.encoder.canvas:
        return (1, 1, 2)
    return (2, side, side) if side else (1, 8, 12)

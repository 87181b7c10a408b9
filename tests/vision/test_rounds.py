"""What is priced is what is done: rounds among the ranks, and passes of each rank through the tower."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast, get_args

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from chiasm.bench.baseline import whole_items
from chiasm.config.engine import EncoderMode
from chiasm.dist.group import SOLO, Group, PendingExchange
from chiasm.models.loader import LoadedModel, load_model
from chiasm.schema.facts import EncoderRates
from chiasm.schema.media import PixelRef, Unit
from chiasm.schema.plan import Assignment, Exchange, VisionPlan
from chiasm.vision.cost import CostModel
from chiasm.vision.encode import UnitEncoder
from chiasm.vision.plan import plan_vision
from chiasm.vision.stages import Stages
from tests.checkpoints.common import SavedModel
from tests.invariants import CPU, cut_plan, rows_by_key, units_of
from tests.prompts import Prompt, make_prompt

NUM_RANKS = 2
GRIDS = [(1, 24, 6), (1, 4, 4), (3, 2, 4), (1, 16, 16)]
HALVES = [(0, 0.5), (1, 1.0)]


class _CountingGroup(Group):
    """One of several ranks, alone: the others send zeros, and every round counts."""

    def __init__(self, rank: int) -> None:
        super().__init__(rank, NUM_RANKS)
        self.num_rounds = 0

    def all_reduce(self, x: Tensor) -> Tensor:
        self.num_rounds += 1
        return x

    def gather_rows(self, local: Tensor, counts: Sequence[int]) -> Tensor:
        self.num_rounds += 1
        return local.new_zeros(sum(counts), *local.shape[1:])

    def start_all_to_all(
        self, outgoing: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> PendingExchange:
        self.num_rounds += 1
        received = outgoing.new_zeros(sum(receive_counts)).split(list(receive_counts))
        return PendingExchange(received, outgoing, cast(torch.distributed.Work, _Done()))


class _Done:
    def wait(self) -> bool:
        return True


def _rates(*, packs_units: bool, per_exchange: float = 0.0, per_pass: float = 0.0) -> EncoderRates:
    """Nothing takes time but what is to be counted."""
    return EncoderRates(per_pass, 0.0, 0.0, per_exchange, 0.0, 4, can_overlap=False, packs_units=packs_units)


def _assignments(kind: str, items: Sequence[Sequence[Unit]], model: CostModel) -> tuple[Assignment, ...]:
    units = [unit for item in items for unit in item]
    if kind == "whole items":
        return whole_items(items, NUM_RANKS)
    if kind in get_args(Exchange):
        exchanges = [cast(Exchange, kind)] * len(units)
        return cut_plan(model.shape, units, [HALVES] * len(units), exchanges).assignments
    return plan_vision(units, num_ranks=NUM_RANKS, mode=cast(EncoderMode, kind), model=model).assignments


def _run(group: _CountingGroup, loaded: LoadedModel, plan: VisionPlan, prompt: Prompt, *, packs_units: bool) -> int:
    """Encode a plan on a rank; how often that goes through the tower."""
    rows = rows_by_key([prompt])
    pixels = {id(unit.pixels): rows[unit.key] for unit in units_of([prompt])}
    passes = []

    def encode(*arguments: Any) -> Stages:
        passes.append(arguments)
        return loaded.model.encode_vision(*arguments)

    def read_rows(ref: PixelRef) -> npt.NDArray[np.uint8]:
        return pixels[id(ref)]

    encoder = UnitEncoder(
        encoder=encode,
        shape=loaded.facts.encoder,
        row_bytes=loaded.facts.processor.row_bytes,
        group=group,
        read_rows=read_rows,
        device=CPU,
        dtype=torch.float32,
        packs_units=packs_units,
    )
    encoder.begin(plan).advance(loaded.facts.encoder.num_stages)
    return len(passes)


@pytest.mark.parametrize("packs_units", [False, True])
@pytest.mark.parametrize("kind", ["whole items", "data", "weights", "all-gather", "all-to-all"])
@torch.inference_mode()
def test_rounds_and_passes_are_those_that_are_priced(qwen2_5_vl: SavedModel, kind: str, packs_units: bool) -> None:
    groups = [_CountingGroup(rank) for rank in range(NUM_RANKS)]
    loaded = [
        load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU, vision_group=group)
        for group in (groups if kind == "weights" else [SOLO] * NUM_RANKS)
    ]
    prompt = make_prompt(loaded[0].facts, GRIDS)
    model = CostModel(loaded[0].facts.encoder, _rates(packs_units=packs_units), NUM_RANKS)
    plan = VisionPlan(_assignments(kind, [item.units for item in prompt.items], model), "a test", 0.0)
    assert any(one.is_cut for one in plan.assignments) == (kind in get_args(Exchange))
    passes = [_run(*pair, plan, prompt, packs_units=packs_units) for pair in zip(groups, loaded, strict=True)]
    per_pass = replace(model, rates=_rates(packs_units=packs_units, per_pass=1.0))
    assert passes == list(per_pass.price(plan.assignments).compute_seconds)
    per_round = replace(model, rates=_rates(packs_units=packs_units, per_exchange=1.0))
    assert [group.num_rounds for group in groups] == [per_round.price(plan.assignments).makespan] * NUM_RANKS

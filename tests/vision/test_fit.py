"""Measuring a tower and the exchanges between ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chiasm.dist.group import SOLO, Group
from chiasm.models.loader import load_model
from chiasm.schema.facts import EncoderRates
from chiasm.vision.fit import Fit
from tests.checkpoints import SavedModel
from tests.invariants import CPU
from tests.ranks import RankPool


def fit_on_rank(group: Group, folder: Path, is_sharded: bool) -> EncoderRates:
    loaded = load_model(folder, dtype=torch.float32, device=CPU, vision_group=group if is_sharded else SOLO)
    encoder, facts = loaded.model.encode_vision, loaded.facts
    row_bytes = facts.processor.row_bytes
    fit = Fit(encoder, facts.encoder, row_bytes, group, is_sharded, CPU, torch.float32, packs_units=False)
    return fit.rates(seconds=0.2)


def test_one_rank_has_no_link(qwen2_5_vl: SavedModel) -> None:
    rates = fit_on_rank(SOLO, qwen2_5_vl.folder, is_sharded=False)
    assert rates.seconds_per_exchange == rates.seconds_per_byte == 0
    assert 0 < rates.seconds_per_flop < 1e-6
    assert 0 < rates.seconds_per_attention_flop < 1e-6
    assert rates.seconds_per_pass >= 0
    assert (rates.bytes_per_element, rates.can_overlap, rates.packs_units) == (4, False, False)


@pytest.mark.parametrize("is_sharded", [False, True])
@pytest.mark.parametrize("size", [2, 4])
def test_ranks_measure_together_and_agree(
    rank_pool: RankPool, qwen2_5_vl: SavedModel, size: int, is_sharded: bool
) -> None:
    rates = rank_pool.run(size, fit_on_rank, qwen2_5_vl.folder, is_sharded)
    assert all(each == rates[0] for each in rates), "the plan must not depend on the rank that tells"
    assert rates[0].seconds_per_exchange > 0
    assert rates[0].seconds_per_flop > 0

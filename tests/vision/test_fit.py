"""Measuring a tower and the exchanges between ranks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest
import torch

from chiasm.dist.group import SOLO, Group
from chiasm.models.loader import load_model
from chiasm.ops.segments import SharedRows
from chiasm.schema.facts import EncoderRates
from chiasm.vision import fit as fit_module
from chiasm.vision.fit import Fit
from chiasm.vision.stages import Stages
from chiasm.vision.timeline import Span, SpanLog, read_spans
from chiasm.vision.units import Piece
from tests.checkpoints.common import SavedModel
from tests.checkpoints.llama4 import save_llama4
from tests.invariants import CPU
from tests.ranks import RankPool


def fit_on_rank(group: Group, folder: Path, is_sharded: bool) -> EncoderRates:
    loaded = load_model(folder, dtype=torch.float32, device=CPU, vision_group=group if is_sharded else SOLO)
    encoder, facts = loaded.model.encode_vision, loaded.facts
    row_bytes = facts.processor.row_bytes
    fit = Fit(encoder, facts.encoder, row_bytes, group, is_sharded, CPU, torch.float32, packs_units=False)
    return fit.rates(seconds=0.2)


class _Stopwatch:
    """A clock that goes by what is computed, and a little with each look at it."""

    def __init__(self) -> None:
        self._now = 0.0

    def perf_counter(self) -> float:
        self._now += 5e-3
        return self._now

    def add(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture
def stopwatch(monkeypatch: pytest.MonkeyPatch) -> _Stopwatch:
    """What a fit measures by."""
    watch = _Stopwatch()
    monkeypatch.setattr(fit_module, "time", watch)
    return watch


@pytest.mark.parametrize("slow_calls", [1, 3])
def test_slow_first_passes_are_no_rates(qwen2_5_vl: SavedModel, stopwatch: _Stopwatch, slow_calls: int) -> None:
    """Libraries that load, and connections that are made, take longer than what is measured."""
    loaded = load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU)
    shape, row_bytes = loaded.facts.encoder, loaded.facts.processor.row_bytes

    def rates(num_slow: int) -> EncoderRates:
        calls = count()

        def encoder(pixels: torch.Tensor, pieces: Sequence[Piece], shared: SharedRows | None) -> Stages:
            stopwatch.add(0.3 if next(calls) < num_slow else 3e-4 * len(pixels))
            return loaded.model.encode_vision(pixels, pieces, shared)

        return Fit(encoder, shape, row_bytes, SOLO, False, CPU, torch.float32, packs_units=False).rates(seconds=0.2)

    usual, slow = rates(0), rates(slow_calls)
    assert slow.seconds_per_flop == pytest.approx(usual.seconds_per_flop)


def test_a_log_of_spans_that_cannot_be_written_is_given_up(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = SpanLog(tmp_path / "absent", 0)
    for _ in range(3):
        log.append([Span("encode", 0.0, 1.0)])
    assert len(caplog.records) == 1
    assert not (tmp_path / "absent").exists()


def test_spans_come_back_as_they_were_written(tmp_path: Path) -> None:
    spans = [Span("load", 0.5, 1.0), Span("encode", 1.0, 2.5)]
    log = SpanLog(tmp_path, 3)
    for span in spans:
        log.append([span])
    assert read_spans(tmp_path, 3) == spans


def test_one_rank_has_no_link(qwen2_5_vl: SavedModel) -> None:
    rates = fit_on_rank(SOLO, qwen2_5_vl.folder, is_sharded=False)
    assert rates.seconds_per_exchange == rates.seconds_per_byte == 0
    assert 0 < rates.seconds_per_flop < 1e-6
    assert 0 < rates.seconds_per_attention_flop < 1e-6
    assert rates.seconds_per_pass == 0, "units apart are not praised for few passes"
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


@pytest.mark.parametrize("packs_units", [False, True])
def test_a_tower_over_tiles_is_given_nothing_but_tiles(
    tmp_path: Path, stopwatch: _Stopwatch, packs_units: bool
) -> None:
    loaded = load_model(save_llama4(tmp_path).folder, dtype=torch.float32, device=CPU)
    passes: list[int] = []

    def encoder(pixels: torch.Tensor, pieces: Sequence[Piece], shared: SharedRows | None) -> Stages:
        assert {piece.grid for piece in pieces} == {(6, 6)}
        passes.append(len(pieces))
        stopwatch.add(1e-4 * len(pixels))
        return loaded.model.encode_vision(pixels, pieces, shared)

    facts = loaded.facts
    fit = Fit(encoder, facts.encoder, facts.processor.row_bytes, SOLO, False, CPU, torch.float32, packs_units)
    rates = fit.rates(seconds=0.5)
    assert set(passes) == {1, 16}
    assert rates.are_sane
    assert packs_units or rates.seconds_per_pass == 0

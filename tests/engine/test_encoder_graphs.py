"""Recorded passes through the tower: which are played, and that they give what passes that are launched anew give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from chiasm.config.engine import EngineConfig
from chiasm.dist.group import SOLO
from chiasm.engine.runner import runner
from chiasm.engine.runner.encoder_graphs import EncoderGraphs, pass_sizes
from chiasm.engine.runner.launch import EncoderLaunch
from chiasm.errors import UserError
from chiasm.models import registry
from chiasm.models.loader import LoadedModel, load_model
from chiasm.ops.varlen import RUN_BY_RUN, ChosenKernel
from chiasm.schema.facts import EncoderShape
from chiasm.vision.cost import CostModel
from chiasm.vision.encode import UnitEncoder
from chiasm.vision.plan import plan_vision
from chiasm.vision.stages import StagedPass, Stages, whole_pass
from chiasm.vision.units import Piece
from tests.checkpoints.common import SavedModel
from tests.checkpoints.glm4v import save_glm4v
from tests.checkpoints.llama4 import save_llama4
from tests.checkpoints.qwen2 import save_qwen2_5_vl, save_qwen2_vl
from tests.checkpoints.qwen3_vl import save_qwen3_vl
from tests.engine.driven import finish, request, running
from tests.engine.tape import TAPED_KERNEL, TapeRecorder
from tests.invariants import CPU, NO_CUTS, encode, encode_in_steps, rows_by_key, units_of
from tests.prompts import make_prompt
from tests.rounding import assert_equal_but_for_rounding

pytestmark = pytest.mark.usefixtures("forked_children")

SAVERS: dict[str, Callable[[Path], SavedModel]] = {
    "qwen2_vl": save_qwen2_vl,
    "qwen2_5_vl": save_qwen2_5_vl,
    "qwen3_vl": partial(save_qwen3_vl, has_experts=False),
    "glm4v": partial(save_glm4v, has_experts=False),
    "llama4": save_llama4,
}
# Patch grids of the units of passes, in the order in which they are played; of tiles, how many.
PASSES: list[list[tuple[int, int]]] = [[(16, 16)], [(10, 12), (8, 6), (2, 2)], [(26, 22)], [(2, 30)], [(4, 4)] * 9]
TILES = [4, 1, 3, 2, 5]
SIZES = (256, 512, 768)


class Recording(NamedTuple):
    """A tower with recorded passes, and the same launched anew and attending run by run."""

    loaded: LoadedModel
    graphs: EncoderGraphs
    recorder: TapeRecorder

    @property
    def shape(self) -> EncoderShape:
        return self.loaded.facts.encoder

    def pieces(self, units: int | Sequence[tuple[int, int]]) -> list[Piece]:
        if isinstance(units, int):
            return [Piece.whole((self.shape.tile_side,) * 2)] * units
        return [Piece.whole(grid) for grid in units]

    def pixels(self, pieces: Sequence[Piece], seed: int = 0) -> Tensor:
        size = (sum(piece.num_rows for piece in pieces), self.loaded.facts.processor.row_bytes)
        return torch.randint(0, 256, size, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)

    @property
    def passes(self) -> list[list[Piece]]:
        return [self.pieces(units) for units in (TILES if self.shape.tile_side else PASSES)]

    def begin(self, pieces: Sequence[Piece], seed: int = 0) -> Stages:
        return self.graphs.encode(self.pixels(pieces, seed), pieces)

    def expected(self, pieces: Sequence[Piece], seed: int = 0) -> Tensor:
        return whole_pass(self.loaded.model.encode_vision(self.pixels(pieces, seed), pieces))


def record(folder: Path, sizes: Sequence[int] = SIZES) -> Recording:
    loaded, recorded = (
        load_model(folder, dtype=torch.float64, device=CPU, segment_kernel=kernel)
        for kernel in (RUN_BY_RUN, TAPED_KERNEL)
    )
    facts, tower = recorded.facts, recorded.model.table_tower()
    assert tower is not None
    graphs = EncoderGraphs(
        tower,
        TAPED_KERNEL,
        facts.encoder,
        row_bytes=facts.processor.row_bytes,
        sizes=pass_sizes(200, facts.encoder) if facts.encoder.tile_side else sizes,
        device=CPU,
        dtype=torch.float64,
    )
    recorder = TapeRecorder()
    graphs.record(recorder)
    return Recording(loaded, graphs, recorder)


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module", params=SAVERS)
def recording(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Recording:
    saved = SAVERS[request.param](tmp_path_factory.mktemp("graphs") / request.param)
    with torch.inference_mode():
        return record(saved.folder)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Of one family, where it does not matter which."""
    saved = save_qwen2_5_vl(tmp_path_factory.mktemp("graphs") / "plain")
    with torch.inference_mode():
        return record(saved.folder)


def check(computed: Tensor, expected: Tensor) -> None:
    assert_equal_but_for_rounding(computed, expected)


def test_passes_that_are_played_give_what_those_launched_anew_give(recording: Recording) -> None:
    """One after another in the same graphs, so that each finds there what the others have left."""
    before = recording.recorder.num_replays
    kept = [whole_pass(recording.begin(pieces, seed)) for seed, pieces in enumerate(recording.passes)]
    num_played = recording.recorder.num_replays - before
    assert num_played == len(kept) * recording.shape.num_stages
    for seed, (features, pieces) in enumerate(zip(kept, recording.passes, strict=True)):
        check(features, recording.expected(pieces, seed))
        assert features.untyped_storage().nbytes() == features.nbytes


def test_a_pass_is_left_off_and_taken_up_again(recording: Recording) -> None:
    """Meanwhile others are launched anew; once it is dropped they are played again."""
    first, second, *_ = recording.passes
    counts = recording.graphs.num_passes
    busy = "launched anew: another pass is in the graphs"
    before = counts[busy]
    under_way = StagedPass(recording.begin(first, 1))
    for stage in range(recording.shape.num_stages - 1):
        under_way.advance(stage + 1)
        check(whole_pass(recording.begin(second, stage)), recording.expected(second, stage))
    under_way.advance(recording.shape.num_stages)
    assert counts[busy] == before + recording.shape.num_stages - 1
    check(under_way.features, recording.expected(first, 1))
    dropped = StagedPass(recording.begin(second, 2))
    dropped.advance(1)
    del dropped
    check(whole_pass(recording.begin(first, 3)), recording.expected(first, 3))
    assert counts[busy] == before + recording.shape.num_stages - 1


def test_the_smallest_graphs_that_hold_a_pass_are_played(plain: Recording, monkeypatch: pytest.MonkeyPatch) -> None:
    played = []
    play = plain.graphs._play

    def noted(fitting: Any, pixels: Tensor) -> Stages:
        played.append(fitting.graphs.num_rows)
        return (yield from play(fitting, pixels))

    monkeypatch.setattr(plain.graphs, "_play", noted)
    for grids in ([(2, 2)], [(16, 16)], [(16, 16), (2, 2)], [(2, 30)] * 9, [(24, 32)], [(24, 32), (2, 2)]):
        whole_pass(plain.begin(plain.pieces(grids)))
    assert played == [256, 256, 512, 768, 768]
    assert plain.graphs.num_passes["launched anew: more patches than the largest graph has"] == 1


@pytest.mark.parametrize("is_broken", [False, True])
@pytest.mark.parametrize("num_steps", [1, 3])
def test_a_plan_is_encoded_in_graphs(
    recording: Recording, num_steps: int, is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All units in one pass; where that breaks, again one by one, of which one at a time is in the graphs."""
    shape, facts = recording.shape, recording.loaded.facts
    side = shape.tile_side
    prompt = make_prompt(facts, [(3, side, side)] if side else [(1, 8, 12), (2, 6, 4), (1, 4, 10)])
    units = units_of([prompt])
    rows = rows_by_key([prompt])
    encoder = UnitEncoder(
        encoder=recording.graphs.encode,
        shape=shape,
        row_bytes=facts.processor.row_bytes,
        group=SOLO,
        read_rows=lambda ref: rows[next(unit.key for unit in units if unit.pixels is ref)],
        device=CPU,
        dtype=torch.float64,
        packs_units=True,
    )
    if is_broken:
        _break_once(recording.graphs, monkeypatch)
    before = recording.graphs.num_passes.copy()
    plan = plan_vision(units, num_ranks=1, mode="data", model=CostModel(shape, NO_CUTS, 1))
    encoded = encode_in_steps(encoder, plan, num_steps)
    assert not encoded.failed
    expected = encode(recording.loaded, [prompt]).split([unit.num_tokens for unit in units])
    for unit, features in zip(units, expected, strict=True):
        check(encoded.features[unit.key], features)
    num_apart = len(units) if is_broken else 0
    assert (recording.graphs.num_passes - before).total() == 1 + num_apart
    assert (recording.graphs.num_passes - before)["in graphs"] >= 1 + bool(num_apart)


def _break_once(graphs: EncoderGraphs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next pass in graphs fails behind its first stage."""
    play = graphs._play

    def broken(fitting: Any, pixels: Tensor) -> Stages:
        monkeypatch.setattr(graphs, "_play", play)
        stages = play(fitting, pixels)
        next(stages)
        yield
        stages.close()
        raise RuntimeError("an illegal memory access")

    monkeypatch.setattr(graphs, "_play", broken)


def test_every_family_is_recorded_or_known_not_to_be() -> None:
    same_towers = {"qwen3_vl_moe", "glm4v_moe"}
    assert {*SAVERS, *same_towers, "mllama"} == set(registry._FAMILIES)


class _Shared:
    """Rows of a unit that others have the rest of; here they attend to nothing."""

    num_rows = 64

    def begin(self, q: Tensor, k: Tensor, v: Tensor) -> _Shared:
        self.out = torch.zeros_like(v)
        return self

    def finish(self, scale: float) -> Tensor:
        return self.out


def test_what_is_launched_anew_is_told_and_counted(plain: Recording, caplog: pytest.LogCaptureFixture) -> None:
    before = plain.recorder.num_replays
    many = plain.pieces([(2, 2)] * 60)
    check(whole_pass(plain.begin(many)), plain.expected(many))
    cut = [Piece((8, 16), 0, 64), *plain.pieces([(4, 6)])]
    pixels = plain.pixels(cut)
    with caplog.at_level("INFO"):
        computed = whole_pass(plain.graphs.encode(pixels, cut, _Shared()))
        whole_pass(plain.graphs.encode(pixels, cut, _Shared()))
    check(computed, whole_pass(plain.loaded.model.encode_vision(pixels, cut, _Shared())))
    assert plain.recorder.num_replays == before
    counts = plain.graphs.num_passes
    assert counts["launched anew: more images or windows than a graph has room for"] == 1
    assert counts["launched anew: units that ranks share"] == 2
    assert [line.getMessage() for line in caplog.records] == [
        "an encoder pass is launched anew: units that ranks share; further ones are counted only"
    ]


def test_what_fills_up_a_pass_cannot_be_seen_in_it(plain: Recording) -> None:
    """Whatever earlier passes have left in the rows behind it."""
    pieces = plain.pieces([(10, 12), (4, 6)])
    found = []
    for value in (0, 255):
        plain.graphs._pixels.fill_(value)
        found.append(whole_pass(plain.begin(pieces)))
    assert torch.equal(*found)


class _Unrecordable(TapeRecorder):
    def record(self, call: Callable[[], Any]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")


def test_what_cannot_be_recorded_names_the_flag(plain: Recording) -> None:
    with pytest.raises(
        UserError, match=r"over 768 patches .* not permitted .* encoder_graph_max_patches=0"
    ) as caught:
        plain.graphs.record(_Unrecordable())
    assert caught.value.param == "encoder_graph_max_patches"


def test_the_recorder_refuses_what_a_gpu_would() -> None:
    with pytest.raises(RuntimeError, match="not permitted"):
        TapeRecorder().record(lambda: torch.ones(3).sum().item())


@pytest.mark.parametrize("family", ["qwen2_5_vl", "llama4"])
def test_an_engine_answers_the_same(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = SAVERS[family](tmp_path / "model")
    facts = load_model(saved.folder, dtype=torch.float32, device=CPU).facts
    side = facts.encoder.tile_side
    grids = [(2, side, side)] if side else [(1, 8, 12), (1, 10, 4), (1, 30, 30)]
    prompts = [make_prompt(facts, pieces) for pieces in ([30], *([3, grid, 5] for grid in grids))]
    config = EngineConfig(
        model=str(saved.folder), dtype="float32", kv_cache_memory_bytes=2**22, encoder_step_budget_patches=40
    )

    def run() -> tuple[dict[str, list[int]], dict[str, int]]:
        with running(config) as core:
            for index, prompt in enumerate(prompts):  # while the first one decodes, encoding takes several steps
                core.add(request(f"r{index}", prompt, tmp_path, max_tokens=5 if index else 60))
            return finish(core), core.stats().encoder_passes

    expected, counted = run()
    assert counted == {}
    monkeypatch.setattr(runner, "tower_kernel", lambda *_: ChosenKernel(TAPED_KERNEL, "taped"))
    monkeypatch.setattr(runner, "CudaRecorder", TapeRecorder)
    monkeypatch.setattr(
        runner,
        "choose_encoder_launch",
        lambda model, kernel, shape, *_: EncoderLaunch(
            (model.table_tower(), kernel), pass_sizes(512, shape), ("taped",)
        ),
    )
    answered, counted = run()
    assert answered == expected
    too_large = "launched anew: more patches than the largest graph has"
    assert counted == {"in graphs": 2, **({} if side else {too_large: 1})}

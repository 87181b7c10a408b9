"""What a rank's memory holds: the biggest step counted and measured, and how free memory is shared out."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from chiasm.cli.main import main
from chiasm.config.engine import EngineConfig, MediaConfig
from chiasm.dist.group import SOLO
from chiasm.engine.cache.shortage import refuse_sequence, refuse_weights
from chiasm.engine.cache.sizing import GIB, MemoryPlan
from chiasm.engine.core.capacity import decide_capacity
from chiasm.engine.runner import biggest_step
from chiasm.engine.runner import memory as rank_memory
from chiasm.engine.runner.allocations import AllocationCounter
from chiasm.engine.runner.biggest_step import BiggestStep, Packing, StepLimits
from chiasm.engine.runner.launch import choose_launch
from chiasm.engine.runner.runner import Runner
from chiasm.errors import UserError
from chiasm.models.loader import LoadedModel, load_model, weight_bytes
from chiasm.models.registry import open_checkpoint
from chiasm.schema.wire import Growth, RankInfo, RankMemory, StepMemory
from tests.checkpoints.common import Layout, SavedModel
from tests.checkpoints.glm4v import save_glm4v
from tests.checkpoints.llama4 import save_llama4
from tests.checkpoints.mllama import save_mllama
from tests.checkpoints.qwen2 import save_qwen2_5_vl, save_qwen2_vl
from tests.checkpoints.qwen3_vl import save_qwen3_vl
from tests.invariants import CPU

SAVERS: dict[str, Callable[[Path], SavedModel]] = {
    "qwen2_vl": save_qwen2_vl,
    "qwen2_5_vl": save_qwen2_5_vl,
    "qwen3_vl": partial(save_qwen3_vl, has_experts=False),
    "qwen3_vl_moe": partial(save_qwen3_vl, has_experts=True),
    "glm4v": partial(save_glm4v, has_experts=False),
    "glm4v_moe": partial(save_glm4v, has_experts=True),
    "llama4": save_llama4,
    "mllama": save_mllama,
}
MIB = 2**20


@pytest.fixture(scope="module", params=SAVERS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    """A small checkpoint of each family."""
    saved = SAVERS[request.param](tmp_path_factory.mktemp("memory") / request.param)
    return load_model(saved.folder, dtype=torch.float32, device=CPU)


def biggest(
    loaded: LoadedModel,
    *,
    num_tokens: int = 600,
    num_patches: int = 1500,
    num_seqs: int = 3,
    num_ranks: int = 1,
    packing: Packing = "together",
) -> BiggestStep:
    limits = StepLimits(
        num_tokens=num_tokens,
        num_seqs=num_seqs,
        num_patches=num_patches,
        max_model_len=1000,
        block_size=16,
        num_ranks=num_ranks,
        packing=packing,
    )
    launch = choose_launch(
        loaded.model, tower_reason="", block_size=16, enforce_eager=True, device=CPU, dtype=torch.float32
    )
    return BiggestStep(loaded.model, loaded.facts, launch, limits, CPU, torch.float32)


@pytest.mark.parametrize("packing", ["together", "apart"])
def test_what_is_counted_without_computing_is_what_computing_takes(
    loaded: LoadedModel, packing: Packing, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = biggest(loaded, packing=packing).measure(has_smaller=True)
    monkeypatch.setattr(biggest_step, "AllocationCounter", _ComputingCounter)
    computed = biggest(loaded, packing=packing).measure(has_smaller=True)
    if loaded.facts.model_type in ("llama4", "qwen3_vl_moe", "glm4v_moe"):  # by how unevenly experts are chosen
        assert computed.forward_bytes <= counted.forward_bytes <= 1.5 * computed.forward_bytes
        counted = msgspec.structs.replace(counted, forward=computed.forward)
    for name in ("vision", "held", "forward", "kept", "sampling"):
        points = dict(getattr(counted, name).points)
        assert points == pytest.approx(dict(getattr(computed, name).points), rel=1e-3), name
    assert 0 < counted.held_bytes < counted.vision_bytes


class _ComputingCounter(AllocationCounter):
    def __init__(self, *, is_computing: bool = True) -> None:
        super().__init__(is_computing=True)


def test_counted_memory_is_what_torchs_profiler_measures(
    qwen2_5_vl: SavedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Independent of the counter: the allocator's own record, in which what operators take inside is seen too."""
    loaded = load_model(qwen2_5_vl.folder, dtype=torch.float32, device=CPU)
    counted = biggest(loaded).measure(has_smaller=True)
    monkeypatch.setattr(biggest_step, "AllocationCounter", _Profiler)
    measured = biggest(loaded).measure(has_smaller=True)
    for name in ("vision_bytes", "forward_bytes"):
        assert getattr(counted, name) == pytest.approx(getattr(measured, name), rel=0.15), name


class _Profiler:
    """A meter that reads torch's profiler when it has ended."""

    live_bytes = 0

    def __init__(self, *, is_computing: bool = True) -> None:
        del is_computing
        self._profile = torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True, acc_events=True
        )
        self._peak: int | None = None

    def __enter__(self) -> _Profiler:
        self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        live = self._peak = 0
        found = self._profile.profiler.kineto_results.events()  # type: ignore[union-attr]
        for event in sorted(found, key=lambda event: event.start_ns()):
            if event.name() == "[memory]":
                live += event.nbytes()
                self._peak = max(self._peak, live)

    @property
    def peak_bytes(self) -> int:
        return self._peak or 0


def test_memory_grows_with_the_limits_and_not_with_the_picture(loaded: LoadedModel) -> None:
    """Twice the rows take about twice as much; of units apart only one is in a layer."""
    unit = biggest(loaded, num_patches=1).measure(has_smaller=True).unit_patches
    small, large = (biggest(loaded, num_patches=n * unit).measure(has_smaller=True) for n in (2, 4))
    assert large.vision_bytes == pytest.approx(2 * small.vision_bytes, rel=0.15)
    if loaded.facts.encoder.canvas is None:
        apart = biggest(loaded, num_patches=4 * unit, packing="apart").measure(has_smaller=True)
        assert apart.vision_bytes < 0.8 * large.vision_bytes
    tokens = [biggest(loaded, num_tokens=n).measure(has_smaller=True).forward_bytes for n in (300, 600)]
    assert 1.3 < tokens[1] / tokens[0] < 2.5


@pytest.mark.parametrize("packing", ["together", "apart", "cut"])
@pytest.mark.parametrize("num_seqs", [4, 64])
def test_advice_that_is_said_to_be_enough_is_enough(loaded: LoadedModel, packing: Packing, num_seqs: int) -> None:
    """Each piece of it is followed, and what the step then takes counted anew."""
    if packing == "cut" and not loaded.facts.encoder.can_cut_rows:
        pytest.skip("units of this family are not cut")
    sizes = {"num_tokens": 1024, "num_patches": 8192, "num_seqs": num_seqs}

    @cache
    def count(**limits: int) -> StepMemory:
        step = biggest(loaded, packing=packing, num_ranks=2 if packing == "cut" else 1, **{**sizes, **limits})
        return step.measure(has_smaller=True)

    def given(step: StepMemory, free: int) -> MemoryPlan:
        config = EngineConfig(model="m", gpu_memory_utilization=1, mm_encoder_cache_gb=0)
        return MemoryPlan(config, [RankMemory("cuda", free, free, 0, step, has_graphs=True)], 0)

    step = count()
    free = given(step, 0).room * -1
    followed = set()
    for sixteenth in range(1, 16):
        needed = free * sixteenth // 16
        with pytest.raises(UserError) as caught:
            refuse_sequence(given(step, free), needed_bytes=needed, num_tokens=2, num_fitting=0)
        enough = caught.value.message.partition("These help")[0]
        for param, value in re.findall(r"lower max_(\w+) to (\d+)", enough):
            limit = param.replace("batched_", "")
            smaller = count(**{limit: int(value)})
            assert given(smaller, free).budget().num_bytes >= needed, (param, value, sixteenth)
            followed.add(limit)
    assert followed, "nothing was ever enough"


@pytest.mark.parametrize("family", SAVERS)
def test_bytes_of_weights(family: str, tmp_path: Path) -> None:
    """They are told a little higher: those of patches are in float64 until they are folded."""
    checkpoint = open_checkpoint(SAVERS[family](tmp_path / family).folder)
    facts = checkpoint.facts
    expected = sum(
        weight.numel() * weight.itemsize
        for _, weight in load_model(checkpoint, dtype=torch.float32, device=CPU).model.named_parameters()  # type: ignore[attr-defined]
    )
    told = weight_bytes(checkpoint, dtype=torch.float32, device=CPU, text_group=SOLO, vision_group=SOLO)
    assert expected <= told <= expected + 8 * facts.encoder.hidden_size * facts.processor.row_bytes


@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="nothing is packed without oneDNN")
def test_a_packed_copy_of_tied_embeddings_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = Layout(has_lm_head=False)
    checkpoint = open_checkpoint(save_qwen2_5_vl(tmp_path / "tied", layout, tied=True).folder)

    def told(device: str) -> int:
        groups = {"text_group": SOLO, "vision_group": SOLO}
        return weight_bytes(checkpoint, dtype=torch.float32, device=torch.device(device), **groups)

    small = told("cpu")
    monkeypatch.setattr("chiasm.ops.matmul._MIN_ELEMENTS", 1)
    model = load_model(checkpoint, dtype=torch.float32, device=CPU).model
    embeddings, projection = model.language_model.embed_tokens.weight, model.lm_head.weight  # type: ignore[attr-defined]
    assert projection.is_mkldnn, "tied, and packed beside the embeddings"
    assert told("cpu") == small + embeddings.nbytes
    assert told("cuda") == small


def line(least: int, least_bytes: int, most: int, most_bytes: int) -> Growth:
    return Growth(((least, least_bytes), (most, most_bytes)))


STEP = StepMemory(
    vision=line(4096, 150 * MIB, 16384, 600 * MIB),
    held=line(4096, 25 * MIB, 16384, 100 * MIB),
    forward=line(64, 160 * MIB, 2048, 400 * MIB),
    kept=line(64, 0, 2048, 0),
    sampling=line(1, 100 * MIB, 64, 100 * MIB),
    is_beside=False,
    num_tokens=2048,
    num_seqs=64,
    num_patches=16384,
    unit_patches=4096,
)
NO_PIXELS = MediaConfig(max_pixel_bytes_in_flight=64 * MIB, mm_processor_cache_gb=0)


def plan(device: Any, free: float, *, ranks: int = 1, item: int = 0, **settings: Any) -> MemoryPlan:
    """Ranks with ``free`` GiB beside 1 GiB of weights; a GPU has 10 GiB."""
    memory = RankMemory(device, 10 * GIB, round(free * GIB), GIB, STEP)
    config = EngineConfig(model="m", tensor_parallel_size=ranks, **{"media": NO_PIXELS, **settings})
    return MemoryPlan(config, [memory] * ranks, item)


def test_peak_is_that_of_encoding_or_of_language_beside_what_is_left_off() -> None:
    assert STEP.peak_bytes == 600 * MIB
    more_held = msgspec.structs.replace(STEP, held=line(4096, 0, 16384, 300 * MIB))
    assert more_held.peak_bytes == 700 * MIB
    assert msgspec.structs.replace(STEP, is_beside=True).peak_bytes == 1000 * MIB


def test_a_smaller_step_is_on_the_line_between_two_that_were_measured() -> None:
    half = msgspec.structs.replace(STEP, num_tokens=1056, num_patches=8192)
    assert (half.vision_bytes, half.forward_bytes, half.peak_bytes) == (300 * MIB, 280 * MIB, 330 * MIB)
    assert msgspec.structs.replace(STEP, num_patches=1).vision_bytes == 150 * MIB, "a unit always fits"
    assert msgspec.structs.replace(STEP, num_tokens=1).forward_bytes == 160 * MIB
    growth = Growth(((4, 10), (7, 20), (8, 20), (10, 21)))
    assert [growth.at(rows) for rows in range(3, 12)] == [10, 10, 14, 17, 20, 20, 21, 21, 21], "rounded up"
    assert [Growth(((7, 20),)).at(rows) for rows in (6, 7, 8)] == [20, 20, 20]


@pytest.mark.parametrize(
    ("given", "mib", "reason"),
    [
        # A quarter of what is free, or what the others leave: the step (600), pixels (64), the encoder cache (256).
        (plan("cpu", 8), 2048, "a quarter"),
        (plan("cpu", 64), 4096, "at most 4 GiB"),
        (plan("cpu", 1), 1024 - 600 - 64 - 256, "the rest leaves"),
        (plan("cpu", 2, ranks=2), (2048 - 1200 - 64) // 2 - 256, "the rest leaves"),
        (plan("cpu", 0.5), 512 - 600 - 64 - 256, "the rest leaves"),
        (plan("cpu", 1, item=300 * MIB), 1024 - 600 - 64 - 300, "the rest leaves"),
        (plan("cpu", 8, kv_cache_memory_bytes=5 * MIB), 5, "as asked"),
        # 9 of 10 GiB may be used, so that 1 stays free.
        (plan("cuda", 9), 8192 - 600 - 256, "gpu_memory_utilization=0.9"),
        (plan("cuda", 9, ranks=2), 8192 - 600 - 256, "gpu_memory_utilization=0.9"),
        (plan("cuda", 9, gpu_memory_utilization=1), 9216 - 600 - 256, "gpu_memory_utilization=1"),
    ],
)
def test_how_free_memory_is_shared_out(given: MemoryPlan, mib: int, reason: str) -> None:
    budget = given.budget()
    assert budget.num_bytes == mib * MIB
    assert reason in budget.reason


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (plan("cpu", 1, kv_cache_memory_bytes=GIB + 1), r"more than the 1.00 GiB that are free of the host's memory"),
        (plan("cpu", 1, ranks=2, kv_cache_memory_bytes=513 * MIB), r"more than the 512.0 MiB"),
        (plan("cuda", 1, kv_cache_memory_bytes=200 * MIB), r"more than the 168.0 MiB .* activations 600.0 MiB"),
    ],
)
def test_a_cache_that_was_asked_for_must_be_there(given: MemoryPlan, message: str) -> None:
    with pytest.raises(UserError, match=f"kv_cache_memory_bytes=.*{message}") as caught:
        given.budget()
    assert caught.value.param == "kv_cache_memory_bytes"


@pytest.mark.parametrize(
    ("given", "needed", "enough", "others"),
    [
        # 168 MiB are there. Smaller steps are no help alone below what the other phase takes.
        (
            plan("cuda", 2, max_model_len=100),
            250,
            ["max_model_len to 50", "max_num_batched_patches to 8192", "mm_encoder_cache_gb to 0"],
            ["tensor_parallel_size above 1"],
        ),
        (
            plan("cuda", 2),
            400,
            ["mm_encoder_cache_gb to 0", "utilization to 0.95"],
            ["max_num_batched_patches to 4096"],
        ),
        (plan("cuda", 2), 3000, [], ["mm_encoder_cache_gb to 0", "utilization to 0.98", "tensor_parallel_size"]),
        (plan("cpu", 1), 250, ["max_num_batched_patches to 8192", "mm_encoder_cache_gb to 0"], []),
        (plan("cpu", 8, kv_cache_memory_bytes=MIB), 300, [f"raise kv_cache_memory_bytes to {300 * MIB}"], []),
        (plan("cpu", 8), 3000, [f"set kv_cache_memory_bytes to {3000 * MIB}"], []),
    ],
)
def test_the_refusal_names_what_is_enough_first(
    given: MemoryPlan, needed: int, enough: list[str], others: list[str]
) -> None:
    with pytest.raises(UserError) as caught:
        refuse_sequence(given, needed_bytes=needed * MIB, num_tokens=100, num_fitting=50)
    message = caught.value.message
    assert "room for 50 tokens" in message
    assert "2048 tokens, 16384 patches" in message
    head, _, tail = message.partition("These help, but not alone")
    assert [text for text in enough if text in head] == enough, message
    assert [text for text in others if text in tail] == others, message
    assert caught.value.param is not None


@pytest.mark.parametrize("own_gb", [0.0, 0.01, 0.1, 10.0])
@pytest.mark.parametrize("seen", [0, 1 * MIB, 20 * MIB])
@pytest.mark.parametrize("needed", [1, 100 * MIB, 999 * MIB])
def test_the_advised_cache_has_room_for_tokens_beside_images_that_they_attend_to(
    own_gb: float, seen: int, needed: int
) -> None:
    given = replace(plan("cpu", 64, mm_encoder_cache_gb=own_gb), seen_bytes=seen)

    def for_tokens(cache_bytes: int) -> int:
        return cache_bytes - given.lent_bytes(cache_bytes)

    least = given.with_token_bytes(needed)
    assert for_tokens(least) >= needed
    assert for_tokens(least - 2) < needed


@pytest.mark.parametrize(
    ("settings", "free", "total", "message"),
    [
        ({}, 3.0, None, None),
        ({}, 2.9, None, r"1 rank take 3.00 GiB, and 2.90 GiB of the host's memory are free; .*16 takes half\.$"),
        ({"dtype": "float32"}, 1.4, None, "dtype=bfloat16 takes half, which is too much as well"),
        ({"dtype": "bfloat16"}, 2.9, None, "are free; take a smaller model"),
        ({"tensor_parallel_size": 2}, 5.0, None, r"weights of 2 ranks take 6.00 GiB"),
        ({}, 4.1, 10.0, None),
        ({}, 3.9, 10.0, r"leaves 2.90 GiB; raise gpu_memory_utilization, or raise tensor_parallel_size above 1"),
        ({}, 2.0, 10.0, r"leaves 1.00 GiB; raise tensor_parallel_size above 1"),
    ],
)
def test_weights_that_do_not_fit(settings: dict[str, Any], free: float, total: float | None, message: str) -> None:
    def check() -> None:
        total_bytes = None if total is None else round(total * GIB)
        config = EngineConfig(model="m", **settings)
        refuse_weights(config, weight_bytes=3 * GIB, free_bytes=round(free * GIB), total_bytes=total_bytes)

    if message is None:
        check()
        return
    with pytest.raises(UserError, match=f"the model can't fit: .*{message}"):
        check()


def runner(saved: SavedModel, **settings: Any) -> Runner:
    return Runner(EngineConfig(model=str(saved.folder), **settings), SOLO, CPU, "as asked")


def test_weights_are_refused_before_they_are_read(qwen2_5_vl: SavedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_memory, "free_host_memory", lambda: 1000)
    monkeypatch.setattr("chiasm.engine.runner.runner.load_model", partial(pytest.fail, "they are read"))
    with pytest.raises(UserError, match=r"the model can't fit: .*and 0.0 MiB of the host's memory are free"):
        runner(qwen2_5_vl)


def test_a_step_beyond_all_memory_is_refused(qwen2_5_vl: SavedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BiggestStep, "measure", lambda *_, **__: torch.empty(2**55, dtype=torch.uint8))
    with pytest.raises(UserError, match=r"can't fit: beside its weights, .* the biggest step \(2048 tokens"):
        runner(qwen2_5_vl).info()


def test_a_rank_tells_its_memory(qwen2_5_vl: SavedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank_memory, "free_host_memory", lambda: GIB)
    small = runner(qwen2_5_vl, max_num_batched_tokens=64, media=MediaConfig(mm_processor_kwargs={"max_pixels": 3136}))
    memory = small.info().memory
    large = runner(qwen2_5_vl).info().memory
    assert memory.free_bytes == GIB
    assert (memory.step.num_tokens, memory.step.unit_patches) == (64, 4 * small.info().facts.max_unit_tokens)
    assert memory.step.forward_bytes < large.step.forward_bytes
    assert memory.step.unit_patches < large.step.unit_patches


@pytest.mark.parametrize("limit", ["tokens", "patches"])
def test_a_start_that_was_refused_succeeds_as_advised(
    limit: str, qwen2_5_vl: SavedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where memory is short, ranks count smaller steps too; elsewhere they save the time."""
    # Of these the other phase takes little, so that a smaller step of the one is enough.
    sizes = {"max_num_batched_tokens": 2048, "max_num_batched_patches": 64, "max_num_seqs": 1}
    if limit == "patches":
        sizes = {"max_num_batched_tokens": 16, "max_num_batched_patches": 16384, "max_num_seqs": 1}
    settings = {**sizes, "max_model_len": 512, "mm_encoder_cache_gb": 0.0}
    settings["media"] = msgspec.structs.replace(NO_PIXELS, mm_processor_kwargs={"max_pixels": 12544})

    def start(free_bytes: int, **changes: int) -> RankInfo:
        monkeypatch.setattr(rank_memory, "free_host_memory", lambda: free_bytes)
        given = EngineConfig(model=str(qwen2_5_vl.folder), **{**settings, **changes})
        info = Runner(given, SOLO, CPU, "as asked").info()
        decide_capacity(given, [info])
        return info

    ample = start(GIB)
    assert len(ample.memory.step.forward.points) == len(ample.memory.step.vision.points) == 1
    needed = 512 // 16 * ample.block_bytes
    item_bytes = ample.facts.max_unit_tokens * ample.feature_row_bytes
    free = ample.memory.working_bytes + NO_PIXELS.max_pixel_bytes_in_flight + item_bytes + needed // 2
    with pytest.raises(UserError) as caught:
        start(free)
    enough = caught.value.message.partition("These help")[0]
    advised = re.findall(rf"lower (max_num_batched_{limit}) to (\d+)", enough)
    assert advised, caught.value.message
    start(free, **{advised[0][0]: int(advised[0][1])})


def test_the_command_line_says_what_does_not_fit(qwen2_5_vl: SavedModel, capfd: pytest.CaptureFixture[str]) -> None:
    line = [
        "generate",
        str(qwen2_5_vl.folder),
        "What?",
        "--kv-cache-memory-bytes",
        "100000",
        "--max-model-len",
        "512",
    ]
    assert main(line) == 2
    last = capfd.readouterr().err.splitlines()[-1]
    assert last.startswith("chiasm: error: the KV cache has room for "), last
    assert "Any of these is enough: lower max_model_len to " in last
    assert "raise kv_cache_memory_bytes to " in last

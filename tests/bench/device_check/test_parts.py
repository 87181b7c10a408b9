"""Each part on the CPU: all right as it is, and wrong where what it checks is broken on purpose."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bench.device_check import attention, encoder_passes, families, machine, ranks, sampling, text_speed, tower_speed
from bench.device_check.attention import check_attention
from bench.device_check.experts import check_experts
from bench.device_check.families import Family, Setup, check_family, graphs_and_none, stream_and_none
from bench.device_check.machine import check_machine
from bench.device_check.models import SMALL, eight_billion, write_model
from bench.device_check.probe import Probe, Skip
from bench.device_check.ranks import check_ranks
from bench.device_check.sampling import check_sampling
from bench.device_check.text_speed import TextWork, measure_text
from bench.device_check.tower_speed import measure_tower
from chiasm.engine.core.core import EngineCore
from chiasm.engine.runner import launch, runner
from chiasm.engine.runner.encoder_stream import SameStream
from chiasm.engine.runner.guides import Guides, Masks
from chiasm.engine.runner.records import SequenceRecord
from chiasm.layers.moe import Experts
from chiasm.models import registry
from chiasm.ops.varlen import ChosenKernel
from chiasm.sampling import draw, sampler
from chiasm.schema.plan import TokenLogprob
from tests.bench.device_check.probed import Probed
from tests.engine.driven import Answer
from tests.engine.tape import TAPED_KERNEL, TapeRecorder
from tests.invariants import CPU

pytestmark = pytest.mark.usefixtures("forked_children")

_NOT_ON_CPUS = {
    "decode steps in CUDA graphs and launched anew, bfloat16",
    "decode steps in CUDA graphs and launched anew, float32",
    "encoder on a stream of its own and before",
    "encoder passes in CUDA graphs and launched anew",
}


def test_every_family_has_a_small_model() -> None:
    assert set(SMALL) == set(registry._FAMILIES)


@pytest.mark.parametrize("family", ["qwen3_vl_moe", "llama4", "mllama"])
def test_a_family_is_right(family: str, tmp_path: Path) -> None:
    statuses = Probed(check_family, tmp_path, family).statuses
    assert {name for name, status in statuses.items() if status == "skipped"} == _NOT_ON_CPUS
    assert statuses["answers in bfloat16"] == statuses["answers in float32"] == "ok"


def _unplaced(embeds: Tensor, placed: Any) -> None:
    """Placeholders keep what stands for them in the vocabulary."""


def _shifted(self: SequenceRecord, start: int, stop: int, out: Any) -> None:
    out[:] = range(start + 1, stop + 1)


def _more_certain(logprobs: Tensor, *told: Any) -> list[TokenLogprob]:
    return report(logprobs / 2, *told)


report = sampler.report


@pytest.mark.parametrize(
    ("owner", "name", "mutant"),
    [
        (runner, "place_features", _unplaced),
        (SequenceRecord, "write_positions", _shifted),
        (sampler, "report", _more_certain),
    ],
    ids=["images are not placed", "positions are off", "log-probabilities are halved"],
)
def test_an_engine_that_is_broken_is_wrong(
    owner: Any, name: str, mutant: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    assert Probed(check_family, tmp_path, "qwen2_5_vl").wrong == ["answers in bfloat16", "answers in float32"]


def test_one_answer_that_is_far_off_is_wrong(tmp_path: Path) -> None:
    exact = [0.0] * 12
    judged = partial(families.judged, has_experts=False)
    assert judged({"a": exact, "b": exact}, "float32").is_good
    assert not judged({"a": exact, "b": [*exact[:-1], 2e-3]}, "float32").is_good
    assert judged({"a": exact, "b": [*exact[:-1], 2.0]}, "bfloat16").is_good
    assert not judged({"a": exact, "b": [0.2] * 12, **dict.fromkeys("cdefghijkl", exact)}, "bfloat16").is_good
    for spoiled, is_good in ((1, True), (2, False)):
        errors = {name: [0.2] * 12 if number < spoiled else exact for number, name in enumerate("abcde")}
        assert families.judged(errors, "bfloat16", has_experts=True).is_good == is_good
    assert not judged({"a": [float("nan")] * 12}, "bfloat16").is_good


GPU = torch.device("cuda")


def preset(tmp_path: Path, first: Setup, second: Setup, *, difference: float, steps: str, line: str) -> Family:
    """A family whose engines have answered already, with five steps of a kind."""
    family = Family("qwen3_vl", tmp_path, CPU)
    for setup, value in ((first, -0.5), (second, -0.5 - difference)):
        token = TokenLogprob(value, 1, ((7, value),))
        family._answers[setup] = {"a": Answer([7] * 12, [token] * 12)}
        family.chosen[setup], family.num_steps[setup] = (line,), Counter({steps: 5})
    return family


@pytest.mark.parametrize(
    ("difference", "steps", "line", "is_good"),
    [
        (0.01, "in graphs", "decode steps: CUDA graphs", True),
        (0.2, "in graphs", "decode steps: CUDA graphs", False),
        (0.0, "none", "decode steps: CUDA graphs", False),
        (0.0, "none", "decode steps: launched anew (no kernel that a graph may hold)", False),
    ],
)
def test_graphs_that_differ_or_are_not_there_are_wrong(
    difference: float, steps: str, line: str, is_good: bool, tmp_path: Path
) -> None:
    setup = Setup("bfloat16")
    family = preset(
        tmp_path, setup, setup._replace(enforce_eager=True), difference=difference, steps=steps, line=line
    )
    assert graphs_and_none(Probe(GPU, tmp_path, print), family, "bfloat16").is_good == is_good


def test_graphs_that_can_not_be_are_skipped(tmp_path: Path) -> None:
    setup = Setup("float32")
    line = "decode steps: launched anew (grouped products take bfloat16, not float32)"
    family = preset(tmp_path, setup, setup, difference=0.0, steps="none", line=line)
    with pytest.raises(Skip, match="grouped products take bfloat16"):
        graphs_and_none(Probe(GPU, tmp_path, print), family, "float32")
    with pytest.raises(Skip, match="on a CPU"):
        graphs_and_none(Probe(CPU, tmp_path, print), family, "float32")


@pytest.mark.parametrize(
    ("difference", "steps", "is_good"), [(0.0, "beside", True), (0.1, "beside", False), (0.0, "none", False)]
)
def test_a_stream_that_changes_answers_or_is_not_used_is_wrong(
    difference: float, steps: str, is_good: bool, tmp_path: Path
) -> None:
    setup = Setup("float32")
    family = preset(
        tmp_path, setup, setup._replace(has_side_stream=False), difference=difference, steps=steps, line=""
    )
    assert stream_and_none(Probe(GPU, tmp_path, print), family).is_good == is_good


def test_steps_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    family, setup = Family("qwen3_vl", tmp_path, CPU), Setup("float32")
    monkeypatch.setattr(SameStream, "is_beside", True)
    family.answers(setup)
    assert family.num_steps[setup]["beside"] > 0


@pytest.mark.parametrize(("family", "is_skipped"), [("qwen3_vl", False), ("llama4", False), ("mllama", True)])
def test_encoder_passes_are_compared_where_there_are_graphs(
    family: str, is_skipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, but for the recorder and the kernel."""
    choose = launch.choose_encoder_launch
    monkeypatch.setattr(launch, "tower_kernel", lambda *_: ChosenKernel(TAPED_KERNEL, "taped"))
    monkeypatch.setattr(launch, "choose_encoder_launch", lambda *given: choose(*given[:-1], torch.device("cuda")))
    monkeypatch.setattr(encoder_passes, "CudaRecorder", TapeRecorder)
    load, graphs, pixels = encoder_passes.load_model, encoder_passes.EncoderGraphs, encoder_passes.random_pixels
    monkeypatch.setattr(encoder_passes, "load_model", lambda *a, device, **k: load(*a, device=CPU, **k))
    monkeypatch.setattr(encoder_passes, "EncoderGraphs", lambda *a, device, **k: graphs(*a, device=CPU, **k))
    monkeypatch.setattr(encoder_passes, "random_pixels", lambda a, b, _, c: pixels(a, b, CPU, c))
    folder = write_model(SMALL[family](), tmp_path)
    if is_skipped:
        with pytest.raises(Skip, match="depends on the tiles"):
            encoder_passes.compare_passes(folder, GPU)
        return
    found = encoder_passes.compare_passes(folder, GPU)
    assert found.is_good, found.detail
    replay = encoder_passes.StagedPass.advance
    monkeypatch.setattr(encoder_passes.StagedPass, "advance", lambda self, stage: replay(self, max(1, stage - 1)))
    with pytest.raises(AssertionError):  # a pass that stops short has no features
        encoder_passes.compare_passes(folder, GPU)
    monkeypatch.undo()


def test_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_SMALL_COPIED", 2**20)
    found = Probed(check_machine, tmp_path)
    assert found.statuses == {"products are right": "ok"}
    assert {record["unit"]: record["value"] > 0 for record in found.of("speed")} == {"TFLOP/s": True, "GB/s": True}
    multiply = Tensor.__matmul__
    monkeypatch.setattr(Tensor, "__matmul__", lambda a, b: multiply(a, b) + (a.dtype == torch.bfloat16))
    assert Probed(check_machine, tmp_path).wrong == ["products are right"]


def test_peaks_are_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {
        "NVIDIA H200": 4800, "NVIDIA H100 80GB HBM3": 3350, "NVIDIA H100 NVL": 3900, "NVIDIA L40S": 864,
        "NVIDIA L4": 300, "NVIDIA A100-SXM4-80GB": 2039, "NVIDIA A100-SXM4-40GB": 1555, "NVIDIA L40": None,
        "NVIDIA GH200 480GB": None, "NVIDIA H200 NVL": None, "NVIDIA RTX A1000": None,
    }  # fmt: skip
    for name, gbs in names.items():
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda _, name=name: name)
        peak = machine.peaks_of(torch.device("cuda")).gbs
        assert (None if peak is None else peak[0]) == gbs, name


def test_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_TOWER_HEADS", {torch.bfloat16: (72,), torch.float32: (72,)})
    decoders = {dtype: own[-2:] for dtype, own in attention._DECODERS.items()}
    monkeypatch.setattr(attention, "_DECODERS", decoders)
    names = Probed(check_attention, tmp_path).statuses
    assert set(names.values()) == {"ok"}
    attend, paged = attention.segment_attention, attention.paged_attention
    monkeypatch.setattr(attention, "segment_attention", lambda *given: attend(*given) * 1.05)
    monkeypatch.setattr(attention, "paged_attention", lambda q, *given: paged(q.roll(1, 1), *given))
    assert Probed(check_attention, tmp_path).wrong == list(names)


def test_sampling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = Probed(check_sampling, tmp_path).statuses
    assert set(statuses.values()) == {"ok"}


@pytest.mark.parametrize(
    ("owner", "name", "mutant", "wrong"),
    [
        (sampler, "uniform", lambda seed, _: seed * 0.137 % 1, {"temperature", "top_p", "min_p"}),
        (sampler, "uniform", lambda *_: random.random(), {"an engine repeats what seeds give"}),
        (sampler, "apply_biases", lambda *_: None, {"bias", "bad words"}),
        (sampler, "apply_penalties", lambda logits, _: logits.__setitem__((..., 13), 50), {"penalties", "greedy"}),
        (sampler, "forbid_others", lambda *_: None, {"a form, greedily", "an engine follows a form"}),
        (sampler, "forbid_banned", lambda *_: None, {"bad words"}),
        (Guides, "masks", lambda *_: Masks({}, {}), {"an engine follows a form"}),
        (draw, "_cut", lambda scaled, params: scaled, {"top_k of one", "top_k and top_p"}),
        (sampler, "report", lambda raw, *told: report(raw * 1.01, *told), {"log-probabilities and ranks"}),
    ],
)
def test_sampling_that_is_broken_is_wrong(
    owner: Any,
    name: str,
    mutant: Callable[..., Any],
    wrong: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    few = {name: way._replace(allowed=way.allowed and way.allowed[:400]) for name, way in sampling._WAYS.items()}
    monkeypatch.setattr(sampling, "_WAYS", few)
    monkeypatch.setattr(sampling, "_VOCABULARY", 3000)
    monkeypatch.setattr(owner, name, mutant)
    assert wrong <= set(Probed(check_sampling, tmp_path).wrong)


def test_experts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = Probed(check_experts, tmp_path).statuses
    assert set(names.values()) == {"ok"}
    for method, words in (("_run_grouped", "grouped"), ("_run_apart", "one by one")):
        with monkeypatch.context() as patch:
            run = getattr(Experts, method)
            patch.setattr(Experts, method, lambda self, rows, chosen, run=run: run(self, rows.roll(1, 0), chosen))
            wrong = Probed(check_experts, tmp_path).wrong
        assert {name for name in names if words in name and ", 1 rows" not in name} == set(wrong)


def test_text_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CHIASM_CACHE", str(tmp_path / "cache"))  # so that the encoder is measured
    found = Probed(measure_text, tmp_path)
    assert set(found.statuses.values()) == {"ok"}
    units = {record["unit"] for record in found.of("speed")}
    assert units == {"s", "ms", "ms a step", "tokens/s", "TFLOP/s", "GB/s"}
    assert all(record["value"] > 0 for record in found.of("speed"))
    stages = [record["name"] for record in found.of("speed") if record["name"].startswith("start")]
    assert len(stages) == len(text_speed._STAGES) + 1
    assert {record["during"] for record in found.of("kernel")} == {
        "4 steps of decoding, 1 at a time", "prefill of 256 tokens",
    }  # fmt: skip

    take = EngineCore.take_deltas
    monkeypatch.setattr(EngineCore, "take_deltas", lambda self: take(self)[1:] or take(self))
    monkeypatch.setattr(text_speed, "longest_kernels", lambda *_: [])
    monkeypatch.setattr(text_speed.Sizes, "num_batched_tokens", property(lambda self: self.num_prompt_tokens))
    monkeypatch.setattr(text_speed, "differences", lambda *_: {"a": [1.0]})
    assert Probed(measure_text, tmp_path).wrong == list(found.statuses)


def test_work_of_eight_billion_parameters(tmp_path: Path) -> None:
    """By hand: 36 layers of 4096 x (32 + 2 x 8 + 32) x 128 and 3 x 4096 x 12288, norms, and the output projection."""
    work = TextWork.of(write_model(eight_billion(), tmp_path), torch.bfloat16)
    layer = 4096 * 80 * 128 + 3 * 4096 * 12288 + 2 * 4096 + 2 * 128
    layers, head = 36 * layer + 4096, 151936 * 4096
    assert (work.num_layer_parameters, work.num_head_parameters) == (layers, head)
    assert work.decode_bytes(32, 1000) == 2 * (layers + head) + 32 * 1000 * 2 * 36 * 8 * 128 * 2
    products = 2 * 3 * (100 * layers + head)
    assert work.prefill_flops(3, 100) == products + 3 * 36 * 4 * 32 * 128 * 100 * 101 / 2


def test_an_engine_without_numbers_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = runner.Runner._run_text
    monkeypatch.setattr(runner.Runner, "_run_text", lambda *given: run(*given) * torch.nan)
    assert Probed(measure_text, tmp_path).wrong == [
        "log-probabilities, 1 at a time",
        "log-probabilities, 4 at a time",
    ]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0])
def test_what_is_no_speed_is_wrong(value: float, tmp_path: Path) -> None:
    assert Probed(lambda probe: probe.speed("a speed", value, "GB/s"), tmp_path).wrong == ["a speed"]


def test_passes_that_were_not_played_are_wrong() -> None:
    assert tower_speed._played(Counter({"in graphs": 3})).is_good
    assert not tower_speed._played(Counter()).is_good
    assert not tower_speed._played(Counter({"in graphs": 3, "too many patches": 1})).is_good


def test_tower_speed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = Probed(measure_tower, tmp_path)
    assert set(found.statuses.values()) == {"ok"}
    assert {record["unit"] for record in found.of("speed")} == {"ms", "TFLOP/s"}
    assert {record["during"] for record in found.of("kernel")} == {"tower, 256 patches, one image"}
    whole = tower_speed.whole_pass
    monkeypatch.setattr(tower_speed, "whole_pass", lambda stages: whole(stages) / 0)
    monkeypatch.setattr(tower_speed, "longest_kernels", lambda *_: [])
    assert Probed(measure_tower, tmp_path).wrong == list(found.statuses)


def test_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are right; the same answers are wrong where two have changed places."""
    real, heard = Family.answers, {}

    def overheard(self: Family, setup: Setup) -> dict[str, Answer]:
        heard[setup] = real(self, setup)
        return heard[setup]

    def swapped(self: Family, setup: Setup) -> dict[str, Answer]:
        answered = heard[setup]
        return answered | {"five tokens": answered["long text"], "long text": answered["five tokens"]}

    monkeypatch.setattr(Family, "answers", overheard)
    assert list(Probed(check_ranks, tmp_path).statuses.values()) == ["ok"] * 3
    monkeypatch.setattr(Family, "answers", swapped)
    found = Probed(check_ranks, tmp_path)
    assert len(found.wrong) == len(found.statuses) == 3


def test_ranks_need_as_many_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    probe = Probe(torch.device("cuda"), tmp_path, print)
    with pytest.raises(Skip, match="there is one GPU, not 2"):
        ranks._check(probe, Family("qwen3_vl", tmp_path, CPU), Setup("float32", num_ranks=2))

"""The check of a device, on the CPU."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from bench.device_check import encoder_passes, families, operators
from bench.device_check.__main__ import main
from bench.device_check.checks import Deadline, Outcome, Report, run_checks
from bench.device_check.families import FAMILIES
from chiasm.engine.runner import launch
from chiasm.models import registry
from chiasm.ops.varlen import ChosenKernel
from tests.engine.tape import TAPED_KERNEL, TapeRecorder
from tests.invariants import CPU


def test_every_family_is_checked() -> None:
    assert set(FAMILIES) == set(registry._FAMILIES)


def test_all_of_it_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    assert main(["--device", "cpu", "--families", "qwen2_5_vl", "--out", str(out)]) == 0
    report = msgspec.json.decode(out.read_bytes(), type=Report)
    names = {finding.name for finding in report.findings}
    assert {"qwen2_5_vl: greedy tokens, float32", "qwen2_5_vl: graphs on and off"} <= names
    skipped = {finding.name: finding.detail for finding in report.findings if finding.status == "skipped"}
    words = "there are no CUDA graphs without a GPU"
    assert skipped == {"qwen2_5_vl: encoder passes in graphs, bfloat16": words}
    assert all(speed.value > 0 for speed in report.speeds)
    assert {"tower, mix of 2", "decoding, 2 at a time, launched anew", "prefill"} <= {s.name for s in report.speeds}
    printed = capsys.readouterr().out
    assert f"{len(names) - 1} of {len(names) - 1} checks hold, 1 were skipped" in printed
    assert "device: cpu" in printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu_is_an_error_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "No GPU found" in capsys.readouterr().out


def test_what_is_wrong_raises_or_is_not_reached_is_told() -> None:
    def fail() -> Outcome:
        raise RuntimeError("an illegal memory access")

    checks = [("good", lambda: Outcome(True, "1")), ("bad", lambda: Outcome(False, "2")), ("broken", fail)]
    found = list(run_checks(checks, Deadline(60)))
    assert [finding.status for finding in found] == ["ok", "WRONG", "WRONG"]
    assert "illegal memory access" in found[2].detail
    assert "test_device_check.py" in found[2].detail
    assert [finding.status for finding in run_checks(checks, Deadline(0))] == ["not reached"] * 3
    assert not Report("", "", (), tuple(found), (), 0.0).is_good


@pytest.mark.parametrize(("family", "status"), [("qwen3_vl", "ok"), ("llama4", "ok"), ("mllama", "skipped")])
def test_encoder_passes_are_compared_where_there_are_graphs(
    family: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU, but for the recorder and the kernel."""
    choose = launch.choose_encoder_launch
    monkeypatch.setattr(launch, "tower_kernel", lambda *_: ChosenKernel(TAPED_KERNEL, "taped"))
    monkeypatch.setattr(launch, "choose_encoder_launch", lambda *given: choose(*given[:-1], torch.device("cuda")))
    monkeypatch.setattr(encoder_passes, "CudaRecorder", TapeRecorder)
    monkeypatch.setattr(encoder_passes, "_SPEED_PATCHES", 256)
    folder = FAMILIES[family](tmp_path).folder
    [found] = run_checks([("it", lambda: encoder_passes.compare_passes(folder, CPU))], Deadline(60))
    assert found.status == status, found.detail
    speeds = list(encoder_passes.pass_speeds(folder, CPU))
    kinds = ["in graphs", "launched anew"] if status == "ok" else []
    assert [speed.name.rpartition(", ")[2] for speed in speeds] == kinds * (len(speeds) // 2)
    assert bool(speeds) == (status == "ok")
    if status == "ok":
        monkeypatch.setattr(encoder_passes, "_LIMIT", -1.0)
        [found] = run_checks([("it", lambda: encoder_passes.compare_passes(folder, CPU))], Deadline(60))
        assert found.status == "WRONG"


def test_a_difference_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(operators, "_LIMITS", dict.fromkeys(operators._LIMITS, -1.0))
    found = list(run_checks(operators.operator_checks(torch.device("cpu")), Deadline(60)))
    assert {finding.status for finding in found} == {"WRONG"}
    family = families.Family("qwen2_5_vl", tmp_path, torch.device("cpu"))
    given = iter([{"r": families.Answer([1, 2], ((1, -0.5),))}, {"r": families.Answer([1, 3], ((1, -0.9),))}] * 4)
    family.answers = lambda setup: next(given)
    assert [finding.status for finding in run_checks(family.checks(), Deadline(60))] == [*["WRONG"] * 4, "skipped"]

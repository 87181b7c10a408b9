"""The check of a device, on the CPU."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import torch

from bench.device_check import families, operators
from bench.device_check.__main__ import main
from bench.device_check.checks import Deadline, Outcome, Report, run_checks
from bench.device_check.families import FAMILIES
from chiasm.models import registry


def test_every_family_is_checked() -> None:
    assert set(FAMILIES) == set(registry._FAMILIES)


def test_all_of_it_on_the_cpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "report.json"
    assert main(["--device", "cpu", "--families", "qwen2_5_vl", "--out", str(out)]) == 0
    report = msgspec.json.decode(out.read_bytes(), type=Report)
    names = {finding.name for finding in report.findings}
    assert {"qwen2_5_vl: greedy tokens, float32", "qwen2_5_vl: graphs on and off"} <= names
    assert all(speed.value > 0 for speed in report.speeds)
    assert {"tower, mix of 2", "decoding, 2 at a time, launched anew", "prefill"} <= {s.name for s in report.speeds}
    printed = capsys.readouterr().out
    assert f"{len(names)} of {len(names)} checks hold" in printed
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


def test_a_difference_is_wrong(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(operators, "_LIMITS", dict.fromkeys(operators._LIMITS, -1.0))
    found = list(run_checks(operators.operator_checks(torch.device("cpu")), Deadline(60)))
    assert {finding.status for finding in found} == {"WRONG"}
    family = families.Family("qwen2_5_vl", tmp_path, torch.device("cpu"))
    given = iter([{"r": families.Answer([1, 2], ((1, -0.5),))}, {"r": families.Answer([1, 3], ((1, -0.9),))}] * 4)
    family.answers = lambda setup: next(given)
    assert [finding.status for finding in run_checks(family.checks(), Deadline(60))] == ["WRONG"] * 4

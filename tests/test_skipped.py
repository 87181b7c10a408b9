"""The last lines of a run say what was left out, also where other processes run the tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.isa import ROOT, SETTINGS, VARIABLES
from tests.skipped import needs, settings_line, skipped_line


def test_reasons_are_counted_by_kind_and_remedy() -> None:
    reasons = [needs("few", "do that"), *[f"Skipped: {needs('many', 'do this: now')}"] * 3, "no such thing"]
    assert skipped_line(reasons) == (
        "skipped: 3 many tests (do this: now), 1 few tests (do that), 1 that do not apply here"
    )
    assert skipped_line([]) == ""


@pytest.mark.parametrize("name", ["as found", "AVX2", "no vectors"])
def test_the_setting_is_named_and_those_that_are_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    for variable, value in SETTINGS[name].variables.items():
        monkeypatch.setenv(variable, value)
    run, _, left = settings_line().partition("; make test-isa runs ")
    assert run.startswith(f"setting that was run: {name} (torch's kernels: ")
    assert left.split(", ") == [other for other in SETTINGS if other != name]


def test_a_setting_of_ones_own_is_named_by_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert settings_line().startswith("setting that was run: ONEDNN_MAX_CPU_ISA=AVX2 (torch's kernels: ")
    assert settings_line().endswith("runs as found, AVX2, no vectors, busy")


def test_they_are_the_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where, as in ``make test``, others run the tests."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    command = [sys.executable, "-m", "pytest", "-q", "tests/ops/test_paged_kernels.py", "-k", "our_kernel", "-n", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    *_, skipped, setting, count = done.stdout.splitlines()
    assert skipped == "skipped: 36 Triton tests (pip install triton, and set TRITON_INTERPRET=1)"
    assert setting.startswith("setting that was run: ")
    assert count.startswith("36 skipped")

"""The last lines of a run say what was left out, also where other processes run the tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.isa import ROOT
from tests.skipped import kernels_line, needs, skipped_line


def test_reasons_are_counted_by_kind_and_remedy() -> None:
    reasons = [needs("few", "do that"), *[f"Skipped: {needs('many', 'do this: now')}"] * 3, "no such thing"]
    assert skipped_line(reasons) == (
        "skipped: 3 many tests (do this: now), 1 few tests (do that), 1 that do not apply here"
    )
    assert skipped_line([]) == ""


def test_kernels_are_named_with_who_chose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATEN_CPU_CAPABILITY", raising=False)
    monkeypatch.delenv("MKL_ENABLE_INSTRUCTIONS", raising=False)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    assert ", by ONEDNN_MAX_CPU_ISA=AVX2; make test-isa" in kernels_line()
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert ", as found; make test-isa" in kernels_line()


def test_they_are_the_last_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where, as in ``make test``, others run the tests."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    command = [sys.executable, "-m", "pytest", "-q", "tests/ops/test_paged_kernels.py", "-k", "our_kernel", "-n", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    *_, skipped, kernels, count = done.stdout.splitlines()
    assert skipped == "skipped: 36 Triton tests (pip install triton, and set TRITON_INTERPRET=1)"
    assert kernels.startswith("torch's kernels: ")
    assert count.startswith("36 skipped")

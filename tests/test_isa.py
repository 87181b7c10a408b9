"""All settings are run and named, whatever comes of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import isa

_TEST = """
import os
import psutil

def test_it():
    others = [each for each in psutil.Process(os.getppid()).children() if "os.getppid()" in " ".join(each.cmdline())]
    with open({log!r}, "a") as log:
        print(os.environ.get("ATEN_CPU_CAPABILITY"), len(others), file=log)
    assert "MKL_ENABLE_INSTRUCTIONS" not in os.environ
"""


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a test has seen that fails with kernels for AVX2."""
    file = tmp_path / "test_it.py"
    file.write_text(_TEST.format(log=str(tmp_path / "log")))
    monkeypatch.setattr(isa, "NUMERIC", (str(file),))
    for name in isa.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "log"


def test_every_setting_is_run_and_the_worst_counts(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert isa.main([]) == 1
    assert log.read_text().splitlines() == ["None 0", "avx2 0", "default 0", "None 2"]
    *_, found, avx2, no_vectors, busy = capfd.readouterr().out.splitlines()
    assert found.startswith("as found: passed in ")
    variables = "ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2"
    assert avx2.startswith(f"AVX2 ({variables}): failed with status 1 in ")
    assert no_vectors.startswith("no vectors (ATEN_CPU_CAPABILITY=default): passed in ")
    assert busy.startswith("busy (2 busy loops): passed in ")


def test_one_setting_with_arguments_of_pytest(log: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert isa.main(["--only", "no vectors", "-k", "nothing"]) == 5
    assert not log.exists()
    assert "no vectors (ATEN_CPU_CAPABILITY=default): failed with status 5" in capfd.readouterr().out


def test_what_is_numeric_is_there() -> None:
    assert all((isa.ROOT / path).exists() for path in isa.NUMERIC)

"""Packages that are carried along, and are used without being installed."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from bench.device_check import __main__ as command
from bench.device_check import child, wheels


def test_versions_are_the_pinned_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(subprocess, "run", lambda given, **_: asked.extend(given))
    (tmp_path / "old-1.whl").touch()
    wheels.collect("3.12", tmp_path)
    assert not list(tmp_path.iterdir()), "two versions of a package would both be unpacked"
    assert asked[asked.index("--python-version") + 1] == "3.12"
    assert [word.partition("==")[0] for word in asked[-3:]] == ["msgspec", "pyzmq", "blake3"]
    constraints = (Path(wheels.__file__).parents[2] / "constraints.txt").read_text().splitlines()
    assert set(asked[-3:]) <= set(constraints)


def test_parts_find_what_is_unpacked(tmp_path: Path) -> None:
    carried = tmp_path / "wheels"
    carried.mkdir()
    with zipfile.ZipFile(carried / "carried-1-py3-none-any.whl", "w") as archive:
        archive.writestr("carried_package.py", "WORD = 'found'")
    environment = command._environment(tmp_path, carried)
    code = "import carried_package, bench; print(carried_package.WORD)"
    printed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert printed.stdout == "found\n"


def test_a_folder_without_wheels_says_how_to_fill_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        command.main(["--device", "cpu", "--out", str(tmp_path / "out"), "--wheels", str(tmp_path)])
    assert "has no wheels; python -m bench.device_check.wheels collects them" in capsys.readouterr().err


def test_what_starts_parts_needs_no_package() -> None:
    root = str(Path(wheels.__file__).parents[2])
    code = f"""
import sys
sys.path.insert(0, {root!r})
import bench.device_check.__main__
print(*sorted({{name.partition(".")[0] for name in sys.modules}} - set(sys.stdlib_module_names) - {{"__main__"}}))
"""
    ran = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "bench\n"


def test_compiled_kernels_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a stand-in of Triton's hook."""
    knobs = ModuleType("triton.knobs")
    knobs.compilation = SimpleNamespace(listener=None)  # type: ignore[attr-defined]
    triton = ModuleType("triton")
    triton.knobs = knobs  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton", triton)
    monkeypatch.setitem(sys.modules, "triton.knobs", knobs)
    told: list[tuple[str, float]] = []
    child._report_compiles(lambda *given: told.append(given))
    compiled: dict[str, Any] = {
        "src": SimpleNamespace(name="_attend_kernel"), "metadata": {}, "metadata_group": {},
        "times": SimpleNamespace(total=1_500_000),
    }  # fmt: skip
    for cache_hit in (True, False):
        knobs.compilation.listener(**compiled, cache_hit=cache_hit)
    assert told == [("_attend_kernel", 1.5)]

"""Packages for a machine that has torch and no network: collected as wheels, and used without being installed.

python -m bench.device_check.wheels [--python 3.12] [--out wheels]

The versions are those of ``constraints.txt``; the machine is Linux on x86-64.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import zipfile
from pathlib import Path

PACKAGES = ("msgspec", "pyzmq", "blake3")
"""What engines need beside torch and numpy."""

_CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
_GLIBC = range(17, 37)  # manylinux_2_N; pip takes a platform by its exact name


def collect(python: str, out: Path) -> None:
    """Download the wheels for a version of Python.

    Args:
        python: "3.12".
        out: folder for the wheels.

    Raises:
        subprocess.CalledProcessError: if pip can't; it says why.
    """
    out.mkdir(parents=True, exist_ok=True)
    for old in out.glob("*.whl"):
        old.unlink()
    platforms = ["manylinux1_x86_64", "manylinux2014_x86_64", *(f"manylinux_2_{n}_x86_64" for n in _GLIBC)]
    subprocess.run(
        [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--only-binary=:all:", "--implementation", "cp", "--python-version", python,
            *(f"--platform={name}" for name in platforms), "--dest", str(out), *_pinned(),
        ],
        check=True,
    )  # fmt: skip


def _pinned() -> list[str]:
    lines = _CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    versions = dict(line.split("==") for line in lines if "==" in line)
    return [f"{name}=={versions[name]}" for name in PACKAGES]


def unpack(wheels: Path, folder: Path) -> Path:
    """Unpack all wheels of a folder into another one, for ``PYTHONPATH``; returns that.

    Raises:
        FileNotFoundError: if there are none.
    """
    files = sorted(wheels.glob("*.whl"))
    if not files:
        raise FileNotFoundError(f"{wheels} has no wheels; python -m bench.device_check.wheels collects them")
    for file in files:
        with zipfile.ZipFile(file) as archive:
            archive.extractall(folder)
    return folder


def main(arguments: list[str]) -> None:
    """Collect them."""
    parser = argparse.ArgumentParser(prog="python -m bench.device_check.wheels")
    parser.add_argument("--python", default=f"{sys.version_info.major}.{sys.version_info.minor}", metavar="3.12")
    parser.add_argument("--out", type=Path, default=Path("wheels"), metavar="FOLDER")
    given = parser.parse_args(arguments)
    collect(given.python, given.out)
    for file in sorted(given.out.glob("*.whl")):
        print(f"{file.stat().st_size / 1e6:5.2f} MB  {file.name}")


if __name__ == "__main__":
    main(sys.argv[1:])

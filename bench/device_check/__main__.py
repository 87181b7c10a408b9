"""Check one device: is everything right on it, and how fast is it?

python -m bench.device_check [--device cuda] [--only machine,speed] [--seconds 600] [--out FOLDER] [--wheels FOLDER]

Parts run one after another, the most important first, each in a process of its own with a time limit: a hang, an
abort or an error that the GPU does not recover from costs that part only. ``report.json`` and ``report.md`` in the
folder are written anew with each thing that is found. ``--device cpu`` runs the same on the CPU with small sizes. The
exit status is 1 where anything is wrong or was not reached, and 2 where there is no GPU.

It needs a torch that is supported, numpy, msgspec, pyzmq and blake3; on a GPU Triton too. ``--wheels`` names a folder
with wheels of what the machine's Python lacks, as ``python -m bench.device_check.wheels`` collects them: they are
unpacked beside the report, and nothing is installed.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from bench.device_check.parts import PARTS, Part
from bench.device_check.report import PartReport, Report
from bench.device_check.supervisor import Settings, run_parts
from bench.device_check.wheels import unpack

_ROOT = Path(__file__).parents[2]
_FIND_GPU = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 3)"


def main(arguments: list[str]) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.device_check")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", metavar="PART,...", help=f"of {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--seconds", type=float, default=600.0, help="for everything; what is not reached is wrong")
    parser.add_argument("--out", type=Path, default=Path("device-check"), metavar="FOLDER")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="of packages that this Python lacks")
    given = parser.parse_args(arguments)
    parts = _chosen(given.only, parser)
    given.out.mkdir(parents=True, exist_ok=True)
    try:
        environment = _environment(given.out, given.wheels)
    except FileNotFoundError as error:
        parser.error(f"--wheels: {error}")
    settings = Settings(given.device, given.out.resolve(), given.seconds, environment)
    missing = _missing_gpu(settings)
    if missing:
        print(missing)
        return 2
    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    command = " ".join(["python -m bench.device_check", *arguments])
    report = Report(command, started, [PartReport(part.name) for part in parts])
    run_parts(parts, settings, report, lambda line: print(line, flush=True))
    print(f"\n{(settings.out / 'report.md').read_text(encoding='utf-8')}")
    return 0 if report.is_good else 1


def _chosen(only: str | None, parser: argparse.ArgumentParser) -> list[Part]:
    """In the order in which they are named."""
    by_name = {part.name: part for part in PARTS}
    names = list(by_name) if only is None else only.split(",")
    unknown = [name for name in names if name not in by_name]
    if unknown:
        parser.error(f"--only: {unknown[0]!r} is none of {', '.join(by_name)}")
    return [by_name[name] for name in names]


def _environment(out: Path, wheels: Path | None) -> dict[str, str]:
    """Of the parts' processes: they find this project, what is unpacked, and caches that are theirs alone."""
    out = out.resolve()
    paths = [str(_ROOT), *([] if wheels is None else [str(unpack(wheels, out / "packages"))])]
    own = {
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "CHIASM_CACHE": str(out / "scratch" / "chiasm"),
        "TRITON_CACHE_DIR": str(out / "scratch" / "triton"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**os.environ, **own}


def _missing_gpu(settings: Settings) -> str | None:
    if settings.device == "cpu":
        return None
    found = subprocess.run(
        [sys.executable, "-c", _FIND_GPU], env=settings.environment, capture_output=True, text=True, check=False
    )
    if found.returncode == 0:
        return None
    if found.returncode == 3:
        return "No GPU found: torch.cuda.is_available() is False. --device cpu checks the check."
    return f"No GPU found, since this Python can't import torch:\n{found.stderr.strip()}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

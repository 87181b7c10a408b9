"""Check one device: is everything right on it, and how fast is it?

python -m bench.device_check [--device cuda] [--only machine,speed] [--seconds 600] [--out FOLDER] [--wheels FOLDER]

Parts run one after another, the most important first, each in a process of its own with a time limit: a hang, an
abort or an error that the GPU does not recover from costs that part only. ``report.json`` and ``report.md`` in the
folder are written anew with each thing that is found. ``--device cpu`` runs the same on the CPU with small sizes. The
exit status is 1 where anything is wrong or was not reached, and 2 where nothing could be begun.

It needs a torch that is supported, numpy, msgspec, pyzmq and blake3; on a GPU Triton too. ``--wheels`` names a folder
with wheels of what the machine's Python lacks, as ``python -m bench.device_check.wheels`` collects them: they are
unpacked beside the report, and nothing is installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from datetime import UTC, datetime
from pathlib import Path

from bench.device_check.parts import PARTS, Part
from bench.device_check.report import PartReport, Report
from bench.device_check.supervisor import Settings, run_parts
from bench.device_check.wheels import unpack

_ROOT = Path(__file__).parents[2]
_OWN_FOLDERS = ("logs", "packages", "scratch")
_SECONDS_TO_LOOK = 120.0
_NO_GPU = 3
_LOOK = f"""
import sys
import blake3, msgspec, numpy, torch, zmq
sys.exit({_NO_GPU} if sys.argv[1] == "cuda" and not torch.cuda.is_available() else 0)
"""


def main(arguments: list[str]) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.device_check")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--only", metavar="PART,...", help=f"of {', '.join(part.name for part in PARTS)}")
    parser.add_argument("--seconds", type=float, default=600.0, help="for everything; what is not reached is wrong")
    parser.add_argument("--out", type=Path, default=Path("device-check"), metavar="FOLDER")
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="of packages that this Python lacks")
    given = parser.parse_args(arguments)
    if not given.seconds > 0:
        parser.error(f"--seconds must be above 0, got {given.seconds}")
    parts = _chosen(given.only, parser)
    started = datetime.now(UTC).strftime("%Y-%m-%d %H:%M")
    command = " ".join(["python -m bench.device_check", *arguments])
    report = Report(command, started, [PartReport(part.name) for part in parts])
    out = given.out.resolve()
    try:
        _clear(out)
        report.write(out)
        settings = Settings(given.device, out, given.seconds, _environment(out, given.wheels))
    except (OSError, zipfile.BadZipFile) as error:
        parser.error(str(error))
    report.detail = _missing(settings)
    if report.detail:
        report.write(out)
        _say(report.detail)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        run_parts(parts, settings, report, _say)
    except KeyboardInterrupt:
        _say("interrupted")
    _say("\n" + "\n".join(report.table()))
    return 0 if report.is_good else 1


def _say(line: str) -> None:
    with contextlib.suppress(OSError):  # whoever read it may be gone: the report goes on
        print(line, flush=True)


def _chosen(only: str | None, parser: argparse.ArgumentParser) -> list[Part]:
    """In the order in which they are named."""
    by_name = {part.name: part for part in PARTS}
    names = list(by_name) if only is None else only.split(",")
    unknown = [name for name in names if name not in by_name]
    if unknown:
        parser.error(f"--only: {unknown[0]!r} is none of {', '.join(by_name)}")
    return [by_name[name] for name in names]


def _clear(out: Path) -> None:
    """Make the folder, and remove what an earlier run has left in it: caches would make this one look faster."""
    out.mkdir(parents=True, exist_ok=True)
    for name in _OWN_FOLDERS:
        shutil.rmtree(out / name, ignore_errors=True)


def _environment(out: Path, wheels: Path | None) -> dict[str, str]:
    """Of the parts' processes: they find this project, what is unpacked, and caches that are theirs alone."""
    paths = [str(_ROOT), *([] if wheels is None else [str(unpack(wheels, out / "packages"))])]
    own = {
        "PYTHONPATH": os.pathsep.join([*paths, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "CHIASM_CACHE": str(out / "scratch" / "chiasm"),
        "TRITON_CACHE_DIR": str(out / "scratch" / "triton"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return {**os.environ, **own}


def _missing(settings: Settings) -> str:
    """Why nothing can be begun; empty if all that is needed is there."""
    command = [sys.executable, "-c", _LOOK, settings.device]
    try:
        found = subprocess.run(
            command, env=settings.environment, capture_output=True, text=True, check=False, timeout=_SECONDS_TO_LOOK
        )
    except subprocess.TimeoutExpired:
        return f"Importing torch and asking it for a GPU did not end within {_SECONDS_TO_LOOK:.0f} s."
    if found.returncode == 0:
        return ""
    if found.returncode == _NO_GPU:
        return "No GPU found: torch.cuda.is_available() is False. --device cpu checks the check."
    how = f"exit status {found.returncode}" if found.returncode > 0 else signal.Signals(-found.returncode).name
    last = (found.stderr.strip().splitlines() or ["nothing was printed"])[-1]
    python = ".".join(map(str, sys.version_info[:2]))
    return (
        f"Python {python} lacks something, or has it for another version: {last} ({how}). With a network, "
        f"python -m bench.device_check.wheels --python {python} collects all but torch and numpy, for --wheels."
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

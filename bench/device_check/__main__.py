"""Check one device: is everything right on it, and how fast is it?

python -m bench.device_check [--device cuda] [--families qwen2_5_vl,mllama] [--seconds 420] [--out FILE.json]

Attention against the CPU's, engines of every family against the CPU's, decode steps and encoder passes recorded and
not, the encoder beside the language model and before it; then a table of speeds, of random checkpoints of 150 million
parameters. What is not begun within the time counts as wrong. ``--device cpu`` runs the same on the CPU with small
sizes, but for what there is on GPUs only. The exit status is 1 where anything is wrong and 2 where there is no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

import msgspec
import torch
from rich.console import Console
from rich.table import Table

from bench.device_check.checks import Deadline, Report, Speed, run_checks
from bench.device_check.encoder_passes import pass_speeds
from bench.device_check.families import FAMILIES, Family
from bench.device_check.operators import operator_checks
from bench.device_check.speed import CPU_SIZES, GPU_SIZES, text_speeds, tower_speeds
from bench.make_checkpoint import FAMILIES as LARGE
from chiasm.config.engine import EngineConfig
from tests.engine.driven import running


def check_device(device: torch.device, families: list[str], seconds: float, console: Console) -> Report:
    """Run all checks and measurements.

    Args:
        device: to be checked.
        families: whose engines are.
        seconds: after which nothing more is begun.
        console: told of each finding as it comes.
    """
    deadline = Deadline(seconds)
    findings = []
    with TemporaryDirectory() as folder, patch.dict(os.environ, CHIASM_CACHE=folder):
        scratch = Path(folder)
        checks = list(operator_checks(device))
        for name in families:
            checks += Family(name, scratch, device).checks()
        for finding in run_checks(checks, deadline):
            console.print(f"{finding.status:11} {finding.seconds:6.1f} s  {finding.name}: {finding.detail}")
            findings.append(finding)
        speeds = list(_speeds(device, scratch, deadline))
        lines = _chosen(device, scratch / families[0] / "model")
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return Report(name, str(torch.__version__), lines, tuple(findings), tuple(speeds), deadline.elapsed)


def _speeds(device: torch.device, scratch: Path, deadline: Deadline) -> Iterator[Speed]:
    is_gpu = device.type == "cuda"
    sizes = GPU_SIZES if is_gpu else CPU_SIZES
    family, saved = "qwen2_5_vl", scratch / "speed"
    save = LARGE[family] if is_gpu else FAMILIES[family]
    if deadline.is_over:
        return
    save(saved)
    yield from tower_speeds(saved, sizes, device, torch.bfloat16 if is_gpu else torch.float32)
    if not deadline.is_over:
        yield from pass_speeds(saved, device)
    if not deadline.is_over:
        yield from text_speeds(saved, scratch, sizes, device, "bfloat16" if is_gpu else "float32")


def _chosen(device: torch.device, model: Path) -> tuple[str, ...]:
    """What an engine says at its start."""
    if not model.exists():
        return ()
    with running(EngineConfig(model=str(model), device=device.type, kv_cache_memory_bytes=2**24)) as core:
        return core.ready.summary


def _print(report: Report, console: Console) -> None:
    console.print(f"{report.device}, torch {report.torch}, {report.seconds:.0f} s")
    for line in report.lines:
        console.print(f"  {line}")
    table = Table("measured", "", "unit")
    for speed in report.speeds:
        table.add_row(speed.name, f"{speed.value:,.2f}", speed.unit)
    console.print(table)
    made = [finding for finding in report.findings if finding.status != "skipped"]
    wrong = [finding for finding in made if finding.status != "ok"]
    num_skipped = len(report.findings) - len(made)
    skipped = f", {num_skipped} were skipped" if num_skipped else ""
    console.print(f"{len(made) - len(wrong)} of {len(made)} checks hold{skipped}")
    for finding in wrong:
        console.print(f"  {finding.status}: {finding.name}: {finding.detail}")


def main(arguments: list[str]) -> int:
    """Run it; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.device_check")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--families", default=",".join(FAMILIES))
    parser.add_argument("--seconds", type=float, default=420.0)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    families = given.families.split(",")
    unknown = sorted(set(families) - set(FAMILIES))
    if unknown:
        parser.error(f"--families: {unknown[0]} is none of {', '.join(FAMILIES)}")
    console = Console(width=150, soft_wrap=True)
    if given.device == "cuda" and not torch.cuda.is_available():
        console.print("No GPU found: torch.cuda.is_available() is False. --device cpu checks the check.")
        return 2
    report = check_device(torch.device(given.device), families, given.seconds, console)
    _print(report, console)
    if given.out is not None:
        given.out.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    return 0 if report.is_good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

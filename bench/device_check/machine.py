"""What the machine is, and what its device reaches: the peaks that speeds are shares of."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import NamedTuple

import torch

from bench.device_check.probe import Outcome, Probe
from bench.device_check.timing import seconds_of

_TERA, _GIGA = 1e12, 1e9
_SIDE, _SMALL_SIDE = 8192, 1024  # of products, on a GPU and on a CPU
_COPIED, _SMALL_COPIED = 2**32, 2**28  # bytes


class Peak(NamedTuple):
    """What a device does at most, by its maker's data sheet; products of bfloat16, dense."""

    tflops: float
    gbs: float


# NVIDIA's data sheets: H100 and H200 (2024), B200 (2024), A100 (2020), L40S (2023), L4 (2023).
_PEAKS = {
    r"H200": Peak(989, 4800),
    r"H100 NVL": Peak(835, 3900),
    r"H100 PCIe": Peak(756, 2000),
    r"H100( 80GB HBM3)?": Peak(989, 3350),
    r"B200": Peak(2250, 8000),
    r"A100-SXM4-80GB": Peak(312, 2039),
    r"A100-SXM4-40GB": Peak(312, 1555),
    r"A100 80GB PCIe": Peak(312, 1935),
    r"L40S": Peak(362, 864),
    r"L4": Peak(121, 300),
}
"""By all of the name that CUDA gives, behind the maker's."""


class Peaks(NamedTuple):
    """What shares are of: (value, name) in TFLOP/s and in GB/s; None on a CPU."""

    tflops: tuple[float, str] | None
    gbs: tuple[float, str] | None


def peaks_of(device: torch.device) -> Peaks:
    """By the data sheet; none on a CPU, and for a GPU that isn't listed here."""
    if device.type != "cuda":
        return Peaks(None, None)
    name = torch.cuda.get_device_name(device)
    for pattern, peak in _PEAKS.items():
        if re.fullmatch(rf"NVIDIA {pattern}", name):
            return Peaks((peak.tflops, f"{peak.tflops:g} TFLOP/s"), (peak.gbs, f"{peak.gbs:g} GB/s"))
    return Peaks(None, None)


def check_machine(probe: Probe) -> None:
    """Name everything that results depend on, and measure what the device reaches by itself."""
    for name, value in _facts(probe.device):
        probe.fact(name, value)
    probe.check("products are right", lambda: _check_product(probe.device))
    peaks = peaks_of(probe.device)
    probe.speed("product of two matrices", product_tflops(probe.device), "TFLOP/s", peaks.tflops)
    probe.speed("copy, read and written", copy_gbs(probe.device), "GB/s", peaks.gbs)


def _facts(device: torch.device) -> list[tuple[str, object]]:
    facts: list[tuple[str, object]] = [
        ("Python", sys.version.split()[0]),
        ("system", platform.platform()),
        ("CPU", f"{_cpu_name()}, {len(os.sched_getaffinity(0))} usable cores"),
        *((name, _version(name)) for name in ("torch", "triton", "numpy", "msgspec", "flashinfer-python")),
        ("CPU kernels of torch", torch.backends.cpu.get_cpu_capability()),
    ]
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        facts += [
            ("GPU", f"{properties.name}, {torch.cuda.device_count()} of them"),
            ("compute capability", f"{properties.major}.{properties.minor}"),
            (
                "memory",
                f"{properties.total_memory / 2**30:.1f} GiB, {torch.cuda.mem_get_info(device)[0] / 2**30:.1f} free",
            ),
            ("processors", properties.multi_processor_count),
            ("CUDA of torch", torch.version.cuda),
            ("NCCL", ".".join(map(str, torch.cuda.nccl.version()))),
        ]
    return facts


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _check_product(device: torch.device) -> Outcome:
    """Of -1, 0 and 1, whose sums every type holds exactly."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randint(-1, 2, (128, 128), generator=generator) for _ in range(2))
    wrong = [
        str(dtype)
        for dtype in (torch.float32, torch.bfloat16)
        if not torch.equal((a.to(device, dtype) @ b.to(device, dtype).mT).cpu(), (a @ b.mT).to(dtype))
    ]
    return Outcome(not wrong, f"{', '.join(wrong)} differ" if wrong else "float32 and bfloat16, to the last bit")


def product_tflops(device: torch.device) -> float:
    """Of large matrices, random: zeros would be faster. In bfloat16 on a GPU, in float32 on a CPU."""
    is_gpu = device.type == "cuda"
    side, dtype = (_SIDE, torch.bfloat16) if is_gpu else (_SMALL_SIDE, torch.float32)
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    return 2 * side**3 / seconds_of(lambda: a @ b, device) / _TERA


def copy_gbs(device: torch.device) -> float:
    """Bytes read and bytes written, of more than any cache holds."""
    size = _COPIED if device.type == "cuda" else _SMALL_COPIED
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device) / _GIGA

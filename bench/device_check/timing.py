"""How long a call takes on a device, and which kernels it spends that time in."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

_CALLS = 9
_WARM_UP = 3
_MICROSECOND = 1e-6


@torch.inference_mode()
def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """The median time of a call, after a few that don't count; on a GPU between events of its stream."""
    times = [_timed(call, device) for _ in range(_WARM_UP + _CALLS)]
    return sorted(times[_WARM_UP:])[_CALLS // 2]


def _timed(call: Callable[[], object], device: torch.device) -> float:
    if device.type != "cuda":
        start = time.perf_counter()
        call()
        return time.perf_counter() - start
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e-3


class KernelTime(NamedTuple):
    """All calls of one kernel; on a CPU of one operator, without those that it calls itself."""

    name: str
    calls: int
    seconds: float
    share: float


def longest_kernels(call: Callable[[], object], device: torch.device, count: int) -> list[KernelTime]:
    """What a call spends most time in."""
    is_gpu = device.type == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if is_gpu else [])]
    with profile(activities=activities) as recorded:
        call()
        if is_gpu:
            torch.cuda.synchronize(device)
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in recorded.events() or ():
        if is_gpu == (event.device_type == DeviceType.CUDA) and not getattr(event, "is_user_annotation", False):
            own = event.time_range.elapsed_us() if is_gpu else event.self_cpu_time_total
            seconds[event.name] += own * _MICROSECOND
            calls[event.name] += 1
    total = sum(seconds.values()) or 1.0
    longest = sorted(seconds, key=lambda name: seconds[name], reverse=True)[:count]
    return [KernelTime(name, calls[name], seconds[name], seconds[name] / total) for name in longest]

"""How long a call takes on a device."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

_PASSES = 5


@torch.inference_mode()
def seconds_of(call: Callable[[], object], device: torch.device) -> float:
    """The median time of a call."""
    times = []
    for _ in range(_PASSES + 2):
        start = time.perf_counter()
        call()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return sorted(times[2:])[_PASSES // 2]

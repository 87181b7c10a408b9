"""How much memory a rank can give to its KV cache."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import torch

from chiasm.config.engine import EngineConfig

_CPU_LIMIT = 4 * 2**30
_CPU_SHARE = 0.25
# Room on a GPU for the activations of the largest step, as a share of its memory.
_GPU_ACTIVATIONS = 0.1


class CacheMemory(NamedTuple):
    """Bytes for the KV cache of one rank, and how they were found."""

    num_bytes: int
    reason: str


def cache_memory(config: EngineConfig, device: torch.device) -> CacheMemory:
    """Decide after the weights are loaded, from what is free then."""
    if config.kv_cache_memory_bytes is not None:
        return CacheMemory(config.kv_cache_memory_bytes, "as asked")
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved = total * (1 - config.gpu_memory_utilization + _GPU_ACTIVATIONS)
        reserved += config.mm_encoder_cache_gb * 2**30
        return CacheMemory(
            max(0, int(free - reserved)), f"gpu_memory_utilization={config.gpu_memory_utilization} of {total} bytes"
        )
    share = int(free_host_memory() * _CPU_SHARE / config.tensor_parallel_size)
    return CacheMemory(
        min(_CPU_LIMIT, share), f"a quarter of free memory over the ranks, at most {_CPU_LIMIT >> 30} GiB"
    )


def free_host_memory() -> int:
    """Bytes that this process could still take: the system's, or less if its control group allows less."""
    pages, page_bytes = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    free = pages * page_bytes
    for line in _read_lines(Path("/proc/meminfo")):
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = (_read_lines(Path("/sys/fs/cgroup") / name) for name in ("memory.max", "memory.current"))
    if limit and used and limit[0].isdigit():
        free = min(free, int(limit[0]) - int(used[0]))
    return max(0, free)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []

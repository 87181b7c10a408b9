"""How each engine is started: its best-known set-ups, with all caches that would know a request again off."""

from __future__ import annotations

import ctypes.util
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bench.peers.worker import Worker

MAX_PIXELS = 1003520
"""Of a picture, for vLLM, which is sized for the largest picture that it may meet, and for chiasm."""

CACHES_OFF = {"enable_prefix_caching": False, "mm_encoder_cache_gb": 0, "mm_processor_cache_gb": 0}
"""Settings of ``chiasm.LLM``."""


class VllmSetup(NamedTuple):
    """A way to use two cores.

    Attributes:
        ranks: its tensor_parallel_size.
        mode: its mm_encoder_tp_mode.
        bind: cores of each rank.
    """

    ranks: int
    mode: str
    bind: str


VLLM_SETUPS = {
    "1 process": VllmSetup(1, "weights", "0-1"),
    "2 ranks weights": VllmSetup(2, "weights", "0|1"),
    "2 ranks data": VllmSetup(2, "data", "0|1"),
}


def hf_worker(python: str, folder: Path, threads: int) -> Worker:
    """Hugging Face transformers."""
    environment = {"OMP_NUM_THREADS": str(threads)}
    return Worker("transformers", python, "hf_worker", [str(folder), str(threads)], environment)


def vllm_worker(python: str, folder: Path, setup: str, settings: Mapping[str, Any]) -> Worker:
    """Start vLLM in one of ``VLLM_SETUPS``, with limits of ``vllm.LLM`` for the workload."""
    ranks, mode, _ = VLLM_SETUPS[setup]
    fixed = {
        "dtype": "float32",
        "tensor_parallel_size": ranks,
        "mm_encoder_tp_mode": mode,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "mm_processor_cache_gb": 0,
        "skip_mm_profiling": True,
        "mm_processor_kwargs": {"max_pixels": MAX_PIXELS},
    }
    arguments = [str(folder), json.dumps({**fixed, **settings})]
    return Worker(f"vLLM, {setup}", python, "vllm_worker", arguments, vllm_environment(python, setup))


def vllm_environment(python: str, setup: str) -> dict[str, str]:
    """Variables that vLLM's CPU build wants: its memory allocator and OpenMP before all else, and its cores.

    Raises:
        SystemExit: if either library is missing, without which it would be measured below its best.
    """
    allocator = ctypes.util.find_library("tcmalloc_minimal")
    openmp = Path(python).absolute().parent.parent / "lib" / "libiomp5.so"
    if allocator is None or not openmp.exists():
        raise SystemExit(f"vLLM needs libtcmalloc_minimal (found: {allocator}) and {openmp} (bench/peers/README.md).")
    return {
        "LD_PRELOAD": f"{allocator}:{openmp}",
        "VLLM_CPU_OMP_THREADS_BIND": VLLM_SETUPS[setup].bind,
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
    }


def chiasm_worker(folder: Path, ranks: int, settings: Mapping[str, Any], cache: str) -> Worker:
    """This checkout with ``auto`` on so many ranks.

    Args:
        folder: of the checkpoint.
        ranks: its tensor_parallel_size.
        settings: further settings of ``chiasm.LLM``.
        cache: folder where it keeps the rates that it measures at its first start.
    """
    chosen = {"dtype": "float32", "tensor_parallel_size": ranks, **CACHES_OFF, **settings}
    arguments = [str(folder), json.dumps(chosen)]
    return Worker(chiasm_name(ranks), sys.executable, "chiasm_worker", arguments, {"CHIASM_CACHE": cache})


def chiasm_name(ranks: int) -> str:
    """As tables name it."""
    return f"chiasm, {ranks} rank{'s' if ranks > 1 else ''}"


def rates_worker(threads: int) -> Worker:
    """What the machine can do, with this project's torch."""
    return Worker("rates", sys.executable, "rates_worker", (), {"OMP_NUM_THREADS": str(threads)})

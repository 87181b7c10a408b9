"""Which torch, device and number format a rank computes with, and why."""

from __future__ import annotations

from typing import NamedTuple

import torch

from chiasm.config.engine import DeviceName, DTypeName
from chiasm.errors import UserError

OLDEST_TORCH = (2, 11)
"""Major and minor version; tests hold what is passed to torch against its signatures and those of newer ones."""


def check_torch(version: str) -> None:
    """Refuse a torch that is too old, before a kernel does.

    Args:
        version: ``torch.__version__``; a build may add words of its own, as in ``2.11.0a0+git``.

    Raises:
        UserError: naming both versions.
    """
    major, minor = version.split(".")[:2]
    if (int(major), int(minor)) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise UserError(
            f"torch {version} is installed; chiasm needs {oldest} or newer: pip install 'torch>={oldest}'"
        )


class Choice(NamedTuple):
    """A device or a dtype with the reason for it."""

    value: str
    reason: str

    def __str__(self) -> str:
        """As the start-up lines show it."""
        return f"{self.value} ({self.reason})"


def choose_device(requested: DeviceName, rank: int, size: int) -> Choice:
    """The device of a rank.

    Raises:
        UserError: if CUDA is asked for and there is too little of it.
    """
    if requested == "cpu":
        return Choice("cpu", "as asked")
    num_gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if num_gpus >= size:
        return Choice(f"cuda:{rank}", "as asked" if requested == "cuda" else f"{num_gpus} GPUs for {size} ranks")
    if requested == "cuda":
        raise UserError(f"device=cuda needs a GPU for each of {size} ranks, {num_gpus} found.", param="device")
    if num_gpus:
        raise UserError(
            f"tensor_parallel_size={size} needs {size} GPUs, {num_gpus} found; take fewer ranks or device=cpu.",
            param="tensor_parallel_size",
        )
    return Choice("cpu", "no GPU found")


def choose_dtype(requested: DTypeName, device: str) -> Choice:
    """The dtype of weights and activations on a device."""
    if requested != "auto":
        is_slow = requested == "float16" and device == "cpu"
        return Choice(requested, "as asked; CPUs are very slow in it" if is_slow else "as asked")
    if device == "cpu":
        return Choice("float32", "exact and fast on every CPU; --dtype bfloat16 halves the memory")
    return Choice("bfloat16", "the usual one on GPUs")


def torch_dtype(name: str) -> torch.dtype:
    """The dtype of that name."""
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype

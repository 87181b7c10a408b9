"""A CUDA graph on the CPU: operators with the tensors that they were called with, played again without any Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chiasm.engine.runner.graphs import Recorded
from chiasm.ops.varlen import VarlenKernel
from tests.ops.test_varlen import EmulatedVarlen

T = TypeVar("T")

# What a stream that is recorded does not permit: to read on the host, or to make something from what is there.
_REFUSED = ("item", "_local_scalar_dense", "nonzero", "masked_select", "lift_fresh")


class TapeRecorder:
    """Records as a CUDA graph does: places are kept, so is what the host knew, and its code is not run again.

    Attributes:
        num_replays: of all that was recorded.
    """

    def __init__(self, *_: object) -> None:
        self.num_replays = 0

    def warm_up(self, call: Callable[[], object]) -> None:
        call()

    def record(self, call: Callable[[], T]) -> Recorded[T]:
        with _Tape() as tape:
            output = call()

        def replay() -> None:
            self.num_replays += 1
            tape.replay()

        return Recorded(replay, output)


class _Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self._calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func._schema.name.removeprefix("aten::") in _REFUSED:
            raise RuntimeError(f"operation not permitted when stream is capturing: {func}")
        out = func(*args, **(kwargs or {}))
        if func._schema.is_mutable or not _storages(out) & _storages((args, kwargs)):  # no mere view
            self._calls.append((func, args, kwargs or {}, out))
        return out

    def replay(self) -> None:
        for func, args, kwargs, out in self._calls:
            new = func(*args, **kwargs)
            if not func._schema.is_mutable:
                for place, value in zip(_tensors(out), _tensors(new), strict=True):
                    place.copy_(value)


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _storages(values: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in _tensors(values) if _has_storage(tensor)}


def _has_storage(tensor: Tensor) -> bool:
    """Whether others can be views of it, as of a packed matrix none can."""
    return tensor.numel() > 0 and not tensor.is_mkldnn


_emulated = EmulatedVarlen(has_room=True)


@torch.library.custom_op("chiasm_tests::varlen", mutates_args=())
def _varlen(q: Tensor, k: Tensor, v: Tensor, borders: Tensor, max_q: int, max_k: int, scale: float) -> Tensor:
    """One operator, as torch's own is, that reads the borders when it is played."""
    return _emulated(q, k, v, borders, borders, max_q, max_k, scale=scale)


def _call(
    query: Tensor, key: Tensor, value: Tensor, cu_seq_q: Tensor, cu_seq_k: Tensor, max_q: int, max_k: int,
    *, scale: float,
) -> Tensor:  # fmt: skip
    assert cu_seq_q is cu_seq_k
    out: Tensor = _varlen(query, key, value, cu_seq_q, max_q, max_k, scale)
    return out


TAPED_KERNEL = VarlenKernel(_call, torch.device("cpu"))
"""Attention that can be recorded."""

"""Brings what the host has made to a device: many arrays in one copy, out of pinned memory.

A copy out of pinned memory goes on while the host does other things, so the memory is written anew only when the copy
is over. On a CPU nothing is pinned and nothing waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_ALIGNMENT = 16
_NUM_BUFFERS = 2  # one is filled while the other is copied

Array = npt.NDArray[Any]


class _Buffer:
    """Host memory, and what tells when its last copy is over."""

    def __init__(self, is_pinned: bool) -> None:
        self._is_pinned = is_pinned
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._copied: torch.cuda.Event | None = None

    def take(self, num_bytes: int) -> Tensor:
        """uint8 [num_bytes], once nobody reads it any more; it grows as needed."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
        if len(self._memory) < num_bytes:
            size = max(num_bytes, 2 * len(self._memory))
            self._memory = torch.empty(size, dtype=torch.uint8, pin_memory=self._is_pinned)
        return self._memory[:num_bytes]

    def mark(self) -> None:
        """Remember that a copy of it has been put into the current stream."""
        if self._is_pinned:
            self._copied = torch.cuda.Event()
            self._copied.record()


class Staging:
    """Copies to one device.

    Args:
        device: where to.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers = [_Buffer(device.type == "cuda") for _ in range(_NUM_BUFFERS)]

    def move(self, arrays: Sequence[Array], into: Tensor | None = None) -> list[Tensor]:
        """Arrays as tensors on the device, all in one copy.

        Args:
            arrays: of any types and shapes.
            into: uint8, at least ``packed_size(arrays)``, where they are to be; None takes new memory.
        """
        places, num_bytes = _places(arrays)
        host = self._next().take(num_bytes)
        packed = host.numpy()
        for array, place in zip(arrays, places, strict=True):
            packed[place : place + array.nbytes].view(array.dtype)[:] = array.ravel()
        target = torch.empty(num_bytes, dtype=torch.uint8, device=self._device) if into is None else into[:num_bytes]
        target.copy_(host, non_blocking=True)
        self._buffers[0].mark()
        return unpacked(target, arrays)

    def move_rows(self, parts: Sequence[Tensor], row_bytes: int) -> Tensor:
        """uint8 parts [n, row_bytes] behind one another, on the device."""
        num_rows = sum(len(part) for part in parts)
        host = self._next().take(num_rows * row_bytes).view(num_rows, row_bytes)
        if parts:
            torch.cat(list(parts), out=host)
        target = torch.empty_like(host, device=self._device)
        target.copy_(host, non_blocking=True)
        self._buffers[0].mark()
        return target

    def _next(self) -> _Buffer:
        self._buffers.append(self._buffers.pop(0))
        return self._buffers[0]


def packed_size(arrays: Sequence[Array]) -> int:
    """Bytes that arrays take behind one another, each where its type may begin."""
    return _places(arrays)[1]


def unpacked(packed: Tensor, arrays: Sequence[Array]) -> list[Tensor]:
    """The tensors within a packed uint8 tensor, by the types and shapes of ``arrays``; views."""
    views = []
    for array, place in zip(arrays, _places(arrays)[0], strict=True):
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        views.append(packed[place : place + array.nbytes].view(dtype).view(array.shape))
    return views


def _places(arrays: Sequence[Array]) -> tuple[list[int], int]:
    places, end = [], 0
    for array in arrays:
        places.append(end)
        end += -(-array.nbytes // _ALIGNMENT) * _ALIGNMENT
    return places, end

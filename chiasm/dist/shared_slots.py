"""Exchanges between ranks that share a machine's memory: each puts its part where all can read it.

A decode step sums a few kilobytes twice in each layer; a message over a socket wakes several threads for each of them.

A counter for each rank is followed by two slots for each, used in turn. Who has counted a round has written its slot and
is done with those of the round before, so that a slot is free when the round after next begins. This needs stores to be
seen in the order in which they were made, as x86-64 promises and others don't. A rank has its counter locked for as
long as it lives, however it ends: whoever waits in vain tries that lock.
"""

from __future__ import annotations

import mmap
import os
import platform
import sys
import time
import weakref
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

if sys.platform != "win32":
    import fcntl

_LINE_BYTES = 64  # counters don't share a line of the processors' caches
_SLOT_BYTES = 2**20
_SPIN_SECONDS = 1e-4  # then a rank sleeps, since the one that it waits for may need its core
_SHORTEST_NAP, _LONGEST_NAP = 5e-5, 1e-3
_NAP_SHARE = 1 / 16  # of the time that it has waited
_SECONDS_BETWEEN_CHECKS = 0.05


def open_shared_slots(
    path: Path, rank: int, size: int, *, agree: Callable[[bool], bool], timeout_seconds: float
) -> SharedSlots | None:
    """What all ranks share; None where this machine doesn't allow it. Every rank calls this at the same time.

    Args:
        path: a file that is absent, in a folder that only this user can enter; nothing is left of it.
        rank: of this process.
        size: number of ranks.
        agree: whether all ranks say yes.
        timeout_seconds: longest wait for the others in each exchange.
    """
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return None
    if not agree(rank != 0 or _is_made(path, _num_bytes(size))):
        return None
    try:
        slots = SharedSlots(path, rank, size, timeout_seconds)
    except OSError:
        slots = None
    is_open = agree(slots is not None)
    if rank == 0:
        path.unlink()
    return slots if is_open else None


def _is_made(path: Path, num_bytes: int) -> bool:
    """Whether the file could be made with memory for all of it, which would else be missed when it is touched."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return False
    try:
        os.posix_fallocate(file, 0, num_bytes)
    except OSError:
        path.unlink()
        return False
    finally:
        os.close(file)
    return True


def _num_bytes(size: int) -> int:
    return _first_slot(size) + 2 * size * _SLOT_BYTES


def _first_slot(size: int) -> int:
    return -(-size * _LINE_BYTES // mmap.PAGESIZE) * mmap.PAGESIZE


class SharedSlots:
    """The part of one rank.

    Args:
        path: of the memory.
        rank: of this process.
        size: number of ranks.
        timeout_seconds: longest wait for the others in each exchange.

    Raises:
        OSError: if the file can't be mapped or locked.
    """

    def __init__(self, path: Path, rank: int, size: int, timeout_seconds: float) -> None:
        self._rank = rank
        self._size = size
        self._timeout = timeout_seconds
        self._round = 0
        # Open until nobody has a use for this any more: closing it gives the lock back.
        self._file = os.open(path, os.O_RDWR)
        weakref.finalize(self, os.close, self._file)
        fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank * _LINE_BYTES)
        memory = mmap.mmap(self._file, _num_bytes(size))
        self._counters = memoryview(memory)[: size * _LINE_BYTES].cast("q")
        slots = torch.frombuffer(memory, dtype=torch.uint8, offset=_first_slot(size)).view(2, size, _SLOT_BYTES)
        self._slots = [list(turn) for turn in slots]

    def add_up(self, x: Tensor) -> None:
        """Sum ``x`` over the ranks, in place and in the order of ranks, so that all have the same to the last bit.

        Args:
            x: contiguous, on the CPU, of the same size and type on all ranks.

        Raises:
            RuntimeError: if another rank has ended, or is not there within the timeout.
        """
        for piece in x.view(-1).split(_SLOT_BYTES // x.itemsize):
            self._add_up_piece(piece)

    def _add_up_piece(self, x: Tensor) -> None:
        first, second, *others = self._exchange(x)
        torch.add(first, second, out=x)
        for part in others:
            x.add_(part)

    def can_gather(self, x: Tensor) -> bool:
        """Whether a row of ``x`` has room in a slot."""
        return x.shape[-1] * x.itemsize <= _SLOT_BYTES

    def gather_last(self, x: Tensor) -> Tensor:
        """Concatenate equal shards along the last dimension, rank-major: [n, d] -> [n, size * d].

        ``x`` is as ``add_up`` has it, and so is what can be raised.
        """
        num_rows, width = x.shape
        gathered = x.new_empty(num_rows, self._size, width)
        step = max(1, _SLOT_BYTES // max(1, width * x.itemsize))
        for rows, target in zip(x.split(step), gathered.split(step), strict=True):
            for rank, part in enumerate(self._exchange(rows.view(-1))):
                target[:, rank].copy_(part.view_as(rows))
        return gathered.view(num_rows, self._size * width)

    def _exchange(self, x: Tensor) -> list[Tensor]:
        """All ranks' [n], by rank; they stay until the exchange after next."""
        self._round += 1
        parts = [slot[: x.nbytes].view(x.dtype) for slot in self._slots[self._round % 2]]
        parts[self._rank].copy_(x)
        self._counters[_place(self._rank)] = self._round
        for rank in range(self._size):
            self._wait_for(rank)
        return parts

    def _wait_for(self, rank: int) -> None:
        counters, place, number = self._counters, _place(rank), self._round
        if counters[place] >= number:
            return
        begin = time.perf_counter()
        while counters[place] < number:
            if time.perf_counter() - begin > _SPIN_SECONDS:
                self._sleep_until_there(rank, begin)

    def _sleep_until_there(self, rank: int, begin: float) -> None:
        place, checked = _place(rank), begin
        while self._counters[place] < self._round:
            waited = time.perf_counter() - begin
            time.sleep(min(_LONGEST_NAP, max(_SHORTEST_NAP, waited * _NAP_SHARE)))
            if begin + waited - checked > _SECONDS_BETWEEN_CHECKS:
                checked = begin + waited
                self._check(rank, waited)

    def _check(self, rank: int, waited: float) -> None:
        """Raise if waiting is no use."""
        if self._has_ended(rank) and self._counters[_place(rank)] < self._round:
            raise RuntimeError(f"rank {rank} has ended, and rank {self._rank} waits for it.")
        if waited > self._timeout:
            raise RuntimeError(f"rank {self._rank} has waited {waited:.0f} s for rank {rank}.")

    def _has_ended(self, rank: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, rank * _LINE_BYTES)
        except OSError:
            return False
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, rank * _LINE_BYTES)
        return True


def _place(rank: int) -> int:
    """Of a rank's counter, in counters of 8 bytes."""
    return rank * _LINE_BYTES // 8

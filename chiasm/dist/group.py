"""The processes that one layer or one batch is spread over, and what they exchange.

A layer is given a group, not a flag: with a group of one every exchange is a no-op.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from chiasm.dist.shared_slots import SharedSlots, open_shared_slots


class PendingExchange(NamedTuple):
    """An exchange under way.

    Attributes:
        pieces: what each rank sends here, once it is over.
        outgoing: what is being sent.
        work: torch's handle.
    """

    pieces: tuple[Tensor, ...]
    outgoing: Tensor
    work: dist.Work

    def wait(self) -> tuple[Tensor, ...]:
        """The pieces, by rank; on a GPU it is the stream that waits."""
        self.work.wait()
        return self.pieces


class Group:
    """Ranks that take part in the same exchanges, in the same order.

    Attributes:
        rank: of this process, in [0, size).
        size: number of ranks; one needs no torch.distributed.
    """

    def __init__(
        self,
        rank: int = 0,
        size: int = 1,
        process_group: dist.ProcessGroup | None = None,
        shared_slots: SharedSlots | None = None,
    ) -> None:
        """Wrap ``process_group``; None is the default group of the process. ``shared_slots`` are of the same ranks."""
        assert 0 <= rank < size
        self.rank = rank
        self.size = size
        self._process_group = process_group
        self._shared_slots = shared_slots

    def all_reduce(self, x: Tensor) -> Tensor:
        """Sum ``x`` over the ranks, in place; returns ``x``."""
        if self.size == 1:
            return x
        if self._shared_slots is not None and _is_plain(x):
            self._shared_slots.add_up(x)
        else:
            dist.all_reduce(x, group=self._process_group)
        return x

    def broadcast(self, x: Tensor, src: int) -> Tensor:
        """Overwrite ``x`` with rank ``src``'s, in place; returns ``x``."""
        if self.size > 1:
            dist.broadcast(x, group=self._process_group, group_src=src)
        return x

    def all_gather_last(self, x: Tensor) -> Tensor:
        """Concatenate equal shards along the last dimension, rank-major: [..., d] -> [..., size * d]."""
        if self.size == 1:
            return x
        x = x.contiguous()
        if self._shared_slots is not None and _is_plain(x) and x.dim() == 2 and self._shared_slots.can_gather(x):
            return self._shared_slots.gather_last(x)
        shards = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(shards, x, group=self._process_group)
        return torch.cat(shards, dim=-1)

    def start_all_to_all(
        self, outgoing: Tensor, send_counts: Sequence[int], receive_counts: Sequence[int]
    ) -> PendingExchange:
        """Begin to send every rank its piece of a buffer and to receive one from each.

        Every rank of the group takes part, also with nothing to say; the sizes of both ends agree.

        Args:
            outgoing: [sum(send_counts)], the pieces for rank 0, 1, ...; left alone until the exchange is over.
            send_counts: elements for each rank.
            receive_counts: elements from each rank.
        """
        assert len(send_counts) == len(receive_counts) == self.size
        assert outgoing.shape == (sum(send_counts),)
        received = outgoing.new_empty(sum(receive_counts))
        work = dist.all_to_all_single(
            received,
            outgoing,
            list(receive_counts),
            list(send_counts),
            group=self._process_group,
            async_op=True,
        )
        assert work is not None
        return PendingExchange(received.split(list(receive_counts)), outgoing, work)

    def gather_rows(self, local: Tensor, counts: Sequence[int]) -> Tensor:
        """Give every rank the rows of all ranks, rank-major, in a buffer of exactly their size.

        Args:
            local: [counts[rank], d]; a rank without rows passes [0, d].
            counts: rows of every rank, the same on every rank.

        Returns:
            [sum(counts), d].
        """
        assert len(counts) == self.size
        assert local.shape[0] == counts[self.rank]
        if self.size == 1:
            return local
        gathered = local.new_empty(sum(counts), *local.shape[1:])
        owners = [rank for rank, count in enumerate(counts) if count]
        if len(owners) == 1:
            if self.rank == owners[0]:
                gathered.copy_(local)
            dist.broadcast(gathered, group=self._process_group, group_src=owners[0])
        elif owners:
            self._all_gather_uneven(gathered, local, list(counts))
        return gathered

    def _all_gather_uneven(self, gathered: Tensor, local: Tensor, counts: list[int]) -> None:
        """Fill ``gathered`` in one collective; an all-to-all, since gloo refuses an uneven all-gather."""
        if dist.get_backend(self._process_group) == "nccl":
            dist.all_to_all(list(gathered.split(counts)), [local] * self.size, group=self._process_group)
            return
        # gloo takes one buffer only, with a copy of the rows for each rank.
        outgoing = local.repeat(self.size, *[1] * (local.dim() - 1))
        dist.all_to_all_single(gathered, outgoing, counts, [len(local)] * self.size, group=self._process_group)


def _is_plain(x: Tensor) -> bool:
    """Whether it lies in one piece in the host's memory."""
    return x.device.type == "cpu" and x.is_contiguous()


SOLO = Group()
"""The group of one."""


def init_world(
    rank: int, size: int, store_path: str | Path, device: torch.device, *, timeout_seconds: float = 600.0
) -> Group:
    """Join the ranks of one engine, all on this machine.

    Args:
        rank: of this process.
        size: how many processes join; one returns ``SOLO`` at once.
        store_path: a file, absent at first, in a folder that only this user can enter; the ranks meet there.
        device: where exchanged tensors live: NCCL for CUDA, gloo for the CPU.
        timeout_seconds: longest wait for the others, at the start and in each exchange.
    """
    if size == 1:
        return SOLO
    is_cuda = device.type == "cuda"
    if is_cuda:
        torch.cuda.set_device(device)
    else:
        _bind_gloo_to_loopback()
    dist.init_process_group(
        "nccl" if is_cuda else "gloo",
        store=dist.FileStore(str(store_path), size),  # type: ignore[attr-defined]  # public, but missing in the stubs
        rank=rank,
        world_size=size,
        timeout=timedelta(seconds=timeout_seconds),
        device_id=device if is_cuda else None,
    )
    if is_cuda:
        return Group(rank, size)
    shared = Path(f"{store_path}.slots")
    return Group(
        rank,
        size,
        shared_slots=open_shared_slots(shared, rank, size, agree=_all_agree, timeout_seconds=timeout_seconds),
    )


def _all_agree(is_willing: bool) -> bool:
    """Whether all ranks of the default group are."""
    unwilling = torch.tensor(int(not is_willing))
    dist.all_reduce(unwilling)
    return not unwilling.item()


def _bind_gloo_to_loopback() -> None:
    # Left alone, gloo listens on the address of the host's name, where other machines can reach it.
    loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback[0])

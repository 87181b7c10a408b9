"""Exchanges through shared memory, between real processes."""

from __future__ import annotations

import os
import platform
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from chiasm.dist import shared_slots
from chiasm.dist.group import Group
from chiasm.dist.shared_slots import SharedSlots, open_shared_slots
from tests.ranks import RankFailure, RankPool

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="ranks share memory on x86-64 Linux"
)
SLOT_FLOATS = shared_slots._SLOT_BYTES // 4


def _open(group: Group, path: Path, timeout_seconds: float = 20.0) -> SharedSlots | None:
    plain = Group(group.rank, group.size)

    def agree(is_willing: bool) -> bool:
        return int(plain.all_reduce(torch.tensor(int(is_willing)))) == group.size

    return open_shared_slots(path, group.rank, group.size, agree=agree, timeout_seconds=timeout_seconds)


def _parts(num_elements: int, dtype: torch.dtype, size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(num_elements, generator=generator).mul(100).to(dtype) for _ in range(size)]


def _add_up(group: Group, path: Path, num_elements: int, dtype: torch.dtype) -> Tensor:
    slots = _open(group, path)
    assert slots is not None
    own = _parts(num_elements, dtype, group.size)[group.rank]
    for _ in range(5):
        x = own.clone()
        slots.add_up(x)
    return x


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("num_elements", [0, 1, 7168, 3 * SLOT_FLOATS + 5])
def test_ranks_add_up_in_their_order(rank_pool: RankPool, tmp_path: Path, size: int, num_elements: int) -> None:
    """To the last bit, in one slot or over several."""
    expected, *others = _parts(num_elements, torch.float32, size)
    for other in others:
        expected = expected + other
    for result in rank_pool.run(size, _add_up, tmp_path / "slots", num_elements, torch.float32):
        assert torch.equal(result, expected)
    assert not list(tmp_path.iterdir())


def _gather_last(group: Group, path: Path, shape: tuple[int, int]) -> Tensor:
    slots = _open(group, path)
    own = torch.arange(shape[0] * shape[1], dtype=torch.float32).view(shape) + 0.25 * group.rank
    assert slots is not None
    assert slots.can_gather(own)
    return slots.gather_last(own)


@pytest.mark.parametrize("shape", [(1, 1), (0, 3), (3, 5), (9, SLOT_FLOATS // 4), (3, SLOT_FLOATS)])
def test_shards_come_side_by_side(rank_pool: RankPool, tmp_path: Path, shape: tuple[int, int]) -> None:
    whole = torch.arange(shape[0] * shape[1], dtype=torch.float32).view(shape)
    expected = torch.cat([whole + 0.25 * rank for rank in range(3)], dim=-1)
    for result in rank_pool.run(3, _gather_last, tmp_path / "slots", shape):
        assert torch.equal(result, expected)


def _in_turn(group: Group, path: Path) -> bool:
    """Ranks that are late by turns: none may read what isn't there yet, or overwrite what is still read."""
    slots = _open(group, path)
    assert slots is not None
    is_right = True
    for number in range(300):
        if number % (7 + group.rank) == 0:
            time.sleep(0.0003 * (number % 11))
        x = torch.full((64,), float(number * group.size + group.rank))
        slots.add_up(x)
        total = number * group.size**2 + sum(range(group.size))
        is_right &= bool((x == total).all())
    return is_right


@pytest.mark.parametrize("size", [2, 4])
def test_late_ranks_are_waited_for(rank_pool: RankPool, tmp_path: Path, size: int) -> None:
    assert all(rank_pool.run(size, _in_turn, tmp_path / "slots"))


def _groups_agree(group: Group) -> bool:
    plain = Group(group.rank, group.size)
    x = torch.arange(12.0).view(3, 4) + group.rank
    sums = [x.clone(), x.T.contiguous().T.clone()]
    pairs = [(group.all_reduce(one.clone()), plain.all_reduce(one.clone())) for one in sums]
    wide = torch.arange(2.0 * SLOT_FLOATS + 2).view(2, -1) + group.rank
    pairs += [(group.all_gather_last(one), plain.all_gather_last(one)) for one in (x, x[0], x.T, wide)]
    return group._shared_slots is not None and all(torch.equal(*pair) for pair in pairs)


def test_a_group_gives_what_messages_give(rank_pool: RankPool) -> None:
    assert rank_pool.run(2, _groups_agree) == [True, True]


def _die(group: Group) -> None:
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    group.all_reduce(torch.ones(3))


def test_a_killed_rank_is_noticed() -> None:
    with RankPool() as pool, pytest.raises(RankFailure, match=r"rank 0: (?s:.*)rank 1 has ended(?s:.*)rank 1: died"):
        pool.run(2, _die, timeout=60)


def _wait_for_a_silent_rank(group: Group, path: Path) -> str:
    slots = _open(group, path, timeout_seconds=0.3)
    assert slots is not None
    message = ""
    if group.rank == 0:
        try:
            slots.add_up(torch.ones(3))
        except RuntimeError as error:
            message = str(error)
    group.broadcast(torch.ones(1), 0)
    return message


def test_a_silent_rank_is_not_waited_for_longer_than_asked(rank_pool: RankPool, tmp_path: Path) -> None:
    first, second = rank_pool.run(2, _wait_for_a_silent_rank, tmp_path / "slots")
    assert re.fullmatch(r"rank 0 has waited \d+ s for rank 1\.", first)
    assert second == ""


def _is_open(group: Group, path: Path) -> bool:
    return _open(group, path) is not None


def test_where_there_is_no_memory_none_is_shared(rank_pool: RankPool, tmp_path: Path) -> None:
    path = tmp_path / "absent" / "slots"
    assert rank_pool.run(2, _is_open, path) == [False, False]

"""Exchanges between real processes over gloo."""

from __future__ import annotations

import time

import pytest
import torch
from torch import Tensor

from chiasm.dist.group import SOLO, Group
from tests.ranks import RankFailure, RankPool

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int64]


def _exchange(group: Group, dtype: torch.dtype) -> dict[str, Tensor]:
    own = torch.tensor([[group.rank + 1, 2]], dtype=dtype)
    return {
        "sum": group.all_reduce(own.clone()),
        "broadcast": group.broadcast(own.clone(), 1),
        "last": group.all_gather_last(own),
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_rank_gets_the_same_in_every_type(rank_pool: RankPool, dtype: torch.dtype) -> None:
    expected = {"sum": [[6, 6]], "broadcast": [[2, 2]], "last": [[1, 2, 2, 2, 3, 2]]}
    for result in rank_pool.run(3, _exchange, dtype):
        assert {name: tensor.tolist() for name, tensor in result.items()} == expected
        assert {tensor.dtype for tensor in result.values()} == {dtype}


def _gather(group: Group, counts: list[int], dtype: torch.dtype) -> tuple[Tensor, int]:
    rows = torch.arange(100, dtype=dtype).view(-1, 2)
    first = sum(counts[: group.rank])
    gathered = group.gather_rows(rows[first : first + counts[group.rank]], counts)
    return gathered, gathered.untyped_storage().nbytes()


@pytest.mark.parametrize("counts", [[2, 2, 2], [3, 0, 1], [0, 0, 5], [0, 7, 0], [0, 0, 0]], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8], ids=str)
def test_uneven_rows_arrive_in_order_in_storage_of_their_size(
    rank_pool: RankPool, counts: list[int], dtype: torch.dtype
) -> None:
    expected = torch.arange(100, dtype=dtype).view(-1, 2)[: sum(counts)]
    for gathered, num_bytes in rank_pool.run(3, _gather, counts, dtype):
        assert torch.equal(gathered, expected)
        assert num_bytes == expected.numel() * expected.element_size()


def test_a_group_of_one_needs_no_processes() -> None:
    x = torch.ones(2, 3)
    exchanges = [SOLO.all_reduce(x), SOLO.broadcast(x, 0), SOLO.all_gather_last(x)]
    assert all(out is x for out in (*exchanges, SOLO.gather_rows(x, [2])))
    assert (SOLO.rank, SOLO.size) == (0, 1)


def _fail_on_rank_one(group: Group) -> None:
    if group.rank == 1:
        raise RuntimeError("planted")
    group.all_reduce(torch.ones(1))


def _rank_of(group: Group) -> int:
    return group.rank


def _kernels(group: Group) -> str:
    return torch.backends.cpu.get_cpu_capability()


def test_ranks_compute_with_the_kernels_of_the_run(rank_pool: RankPool) -> None:
    """Those that the environment asks for, in ``make test-isa``."""
    assert rank_pool.run(2, _kernels) == [torch.backends.cpu.get_cpu_capability()] * 2


def _sleep(group: Group) -> None:
    time.sleep(60)


def test_a_failing_or_silent_rank_fails_the_test_and_the_pool_recovers() -> None:
    with RankPool() as pool:
        with pytest.raises(RankFailure, match=r"rank 1: .*\n(?s:.*)planted"):
            pool.run(2, _fail_on_rank_one, timeout=5)
        with pytest.raises(RankFailure, match="rank 0 did not answer within 1 s"):
            pool.run(1, _sleep, timeout=1)
        assert pool.run(2, _rank_of) == [0, 1]

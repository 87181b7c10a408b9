"""How rows, columns and heads are shared out."""

from __future__ import annotations

import pytest

from chiasm.dist.group import Group
from chiasm.errors import UserError
from chiasm.layers.shards import check_text_heads, check_vision_heads, shard_bounds, split_heads


@pytest.mark.parametrize("size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("total", [8, 90, 180, 3420, 18944])
def test_shares_cover_everything_in_order(total: int, size: int) -> None:
    bounds = [shard_bounds(total, Group(rank, size)) for rank in range(size)]
    assert [bounds[0][0], *(stop for _, stop in bounds)] == [*(start for start, _ in bounds), total]
    lengths = [stop - start for start, stop in bounds]
    assert max(lengths) - min(lengths) <= (0 if total % size == 0 else 15)


def test_uneven_shares_start_on_multiples_of_eight() -> None:
    assert [shard_bounds(3420, Group(rank, 8))[0] % 8 for rank in range(8)] == [0] * 8


@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_query_heads_meet_their_key_value_head(size: int) -> None:
    """16 query heads read 4 key-value heads; on 8 ranks two neighbours hold the same one."""
    for rank in range(size):
        heads = split_heads(16, 4, 64, Group(rank, size))
        group = heads.num_heads // heads.num_kv_heads
        for local in range(heads.num_heads):
            assert heads.first_kv_head + local // group == (heads.first_head + local) // 4


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "fitting"), [(28, 4, "1, 2, 4, 28"), (8, 2, "1, 2, 4, 8")])
def test_ranks_that_do_not_divide_the_text_heads_are_refused(num_heads: int, num_kv_heads: int, fitting: str) -> None:
    sizes = [int(size) for size in fitting.split(", ")]
    for size in range(1, num_heads + 1):
        if size in sizes:
            check_text_heads(num_heads, num_kv_heads, size)
            continue
        with pytest.raises(UserError, match=f"tensor_parallel_size={size} .*sizes that fit: {fitting}") as caught:
            check_text_heads(num_heads, num_kv_heads, size)
        assert caught.value.param == "tensor_parallel_size"


def test_ranks_that_do_not_divide_the_vision_heads_are_refused() -> None:
    check_vision_heads(16, 8)
    with pytest.raises(UserError, match=r"--mm-encoder-tp-mode weights .*16 .*3 ranks.*1, 2, 4, 8, 16") as caught:
        check_vision_heads(16, 3)
    assert caught.value.param == "mm_encoder_tp_mode"

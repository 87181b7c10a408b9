"""Which rows, columns and heads belong to a rank. Numbers only."""

from __future__ import annotations

from dataclasses import dataclass

from chiasm.dist.group import Group
from chiasm.errors import UserError

_GRANULE = 8


def shard_bounds(total: int, group: Group) -> tuple[int, int]:
    """Start and stop of this rank's share of ``total`` rows or columns.

    Where the ranks do not divide the total, shares end on multiples of 8, which keeps matmuls on their fast paths.
    """
    return _boundary(total, group.rank, group.size), _boundary(total, group.rank + 1, group.size)


def _boundary(total: int, rank: int, size: int) -> int:
    if total % size == 0 or rank == size:
        return total * rank // size
    return min(total, round(total * rank / size / _GRANULE) * _GRANULE)


@dataclass(frozen=True)
class HeadShard:
    """The attention heads of one rank.

    Attributes:
        total_heads: query heads of the model.
        total_kv_heads: key-value heads of the model.
        head_dim: size of a head.
        first_head: the rank's first query head.
        num_heads: its query heads.
        first_kv_head: its first key-value head.
        num_kv_heads: its key-value heads; ranks share one where there are more ranks than heads.
    """

    total_heads: int
    total_kv_heads: int
    head_dim: int
    first_head: int
    num_heads: int
    first_kv_head: int
    num_kv_heads: int


def split_heads(total_heads: int, total_kv_heads: int, head_dim: int, group: Group) -> HeadShard:
    """This rank's heads; ``check_text_heads`` or ``check_vision_heads`` has found that they divide."""
    num_heads = total_heads // group.size
    num_kv_heads = max(1, total_kv_heads // group.size)
    return HeadShard(
        total_heads=total_heads,
        total_kv_heads=total_kv_heads,
        head_dim=head_dim,
        first_head=group.rank * num_heads,
        num_heads=num_heads,
        first_kv_head=group.rank * total_kv_heads // group.size,
        num_kv_heads=num_kv_heads,
    )


def check_text_heads(num_heads: int, num_kv_heads: int, size: int) -> None:
    """Refuse a number of ranks that the language model's heads can't be shared by.

    Raises:
        UserError: naming ``tensor_parallel_size`` and the sizes that would fit.
    """
    sizes = _fitting_sizes(num_heads, num_kv_heads)
    if size not in sizes:
        raise UserError(
            f"tensor_parallel_size={size} does not divide the language model's {num_heads} attention heads and "
            f"{num_kv_heads} key-value heads; sizes that fit: {_join(sizes)}.",
            param="tensor_parallel_size",
        )


def check_vision_heads(num_heads: int, size: int) -> None:
    """Refuse a number of ranks that the vision encoder's heads can't be shared by.

    Raises:
        UserError: naming ``mm_encoder_tp_mode`` and what would fit.
    """
    sizes = _fitting_sizes(num_heads, num_heads)
    if size not in sizes:
        raise UserError(
            f"--mm-encoder-tp-mode weights can't share the vision encoder's {num_heads} attention heads among "
            f"{size} ranks; sizes that fit: {_join(sizes)}. --mm-encoder-tp-mode data and auto fit any size.",
            param="mm_encoder_tp_mode",
        )


def _fitting_sizes(num_heads: int, num_kv_heads: int) -> list[int]:
    return [
        size
        for size in range(1, num_heads + 1)
        if num_heads % size == 0 and (num_kv_heads % size == 0 or size % num_kv_heads == 0)
    ]


def _join(sizes: list[int]) -> str:
    return ", ".join(map(str, sizes))

"""Placement as other engines do it, to compare with: whole items, by their numbers of patches."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace

from chiasm.schema.media import Unit
from chiasm.schema.plan import Assignment, Share


def whole_items(items: Sequence[Sequence[Unit]], num_ranks: int) -> tuple[Assignment, ...]:
    """All units of an item on one rank, the item with the most patches first, each to the rank with the fewest.

    So do the data-parallel modes of vLLM and SGLang; that attention grows with the square is not seen by it.
    """
    heap = [(0, rank) for rank in range(num_ranks)]
    sizes = [sum(unit.num_rows for unit in item) for item in items]
    owners = {}
    for index in sorted(range(len(items)), key=lambda index: (-sizes[index], index)):
        load, rank = heap[0]
        owners[index] = rank
        heapreplace(heap, (load + sizes[index], rank))
    return tuple(
        Assignment(unit, (Share(owners[index], 0, unit.num_rows),))
        for index, item in enumerate(items)
        for unit in item
    )

"""What a paged attention kernel is told of a batch, in plain arrays.

A span is rows of one sequence, neighbours in the batch, that attend from the same first key on: a sequence's rows, or
those of one chunk of positions where rows attend within their chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from chiasm.ops.paged_attention import SequenceRows

Int32Array = npt.NDArray[np.int32]


class SpanTables(NamedTuple):
    """Spans of a batch; S is their number.

    Row i of a span of m rows sees the keys from ``first_keys`` to ``num_keys - m + i``, counted within its blocks.

    Attributes:
        first_rows: int32 [S + 1], the first row of each, and the end.
        first_keys: int32 [S], the first key, counted from the start of the first block: 0 unless a chunk begins
            within a block.
        num_keys: int32 [S], one past its last row's key, counted alike.
        block_table: int32 [S, most blocks], the blocks that hold its keys, in order; then zeros.
    """

    first_rows: Int32Array
    first_keys: Int32Array
    num_keys: Int32Array
    block_table: Int32Array

    @property
    def max_rows(self) -> int:
        """Rows of the longest span."""
        return int(np.diff(self.first_rows).max())


def span_tables(
    sequences: Sequence[SequenceRows],
    block_size: int,
    chunk_size: int | None = None,
    num_columns: int | None = None,
) -> SpanTables:
    """Describe a batch.

    Args:
        sequences: in the order of their rows.
        block_size: tokens in a block.
        chunk_size: see ``paged_attention``.
        num_columns: width of the block table; None takes what is needed.
    """
    borders, first_keys, num_keys, blocks = [0], [], [], []
    for sequence in sequences:
        for start, stop in _spans(sequence, chunk_size):
            first = 0 if chunk_size is None else start - start % chunk_size
            first_block = first // block_size
            borders.append(borders[-1] + stop - start)
            first_keys.append(first - first_block * block_size)
            num_keys.append(stop - first_block * block_size)
            blocks.append(sequence.block_ids[first_block : -(-stop // block_size)])
    width = max(map(len, blocks)) if num_columns is None else num_columns
    table = np.zeros((len(blocks), width), np.int32)
    for row, own in zip(table, blocks, strict=True):
        row[: len(own)] = own
    return SpanTables(
        np.array(borders, np.int32), np.array(first_keys, np.int32), np.array(num_keys, np.int32), table
    )


def _spans(sequence: SequenceRows, chunk_size: int | None) -> Iterator[tuple[int, int]]:
    """Positions of the new rows, by chunk if there are any."""
    start, stop = sequence.num_computed_tokens, sequence.num_computed_tokens + sequence.num_new_tokens
    while start < stop:
        end = stop if chunk_size is None else min(stop, start - start % chunk_size + chunk_size)
        yield start, end
        start = end


def slots_of(sequences: Sequence[SequenceRows], block_size: int) -> npt.NDArray[np.int64]:
    """[n], where each row's key and value go: block * block_size + offset."""
    parts = [np.empty(0, np.int64)]
    for num_computed, num_new, block_ids in sequences:
        first_block = num_computed // block_size
        blocks = np.asarray(block_ids[first_block : -(-(num_computed + num_new) // block_size)], np.int64)
        positions = np.arange(num_computed, num_computed + num_new)
        parts.append(blocks[positions // block_size - first_block] * block_size + positions % block_size)
    return np.concatenate(parts)

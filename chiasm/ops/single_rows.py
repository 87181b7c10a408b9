"""Attention of sequences that bring one row each, as all do that decode, on a CPU: a few calls for all of them.

Keys and values are read where they lie in the cache: scores are a product that is computed at some places only, those
of a row's own keys, and what a row attends to is a weighted bag of values. A row's result depends on its own sequence
alone, to the last bit.

Shapes: S rows, H query heads, Hkv key-value heads, D head size, E scores: H for each key of each row.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

IntArray = npt.NDArray[np.int64]

MOST_KEYS = 2**17
"""Keys that the rows of a batch may have together: tables take 16 bytes for each of them and each head. Beyond that,
what a call costs is little beside what it does."""


class SingleRow(NamedTuple):
    """The one row of a sequence.

    Attributes:
        row: of the packed batch.
        position: in its sequence; it attends to the keys up to there.
        block_ids: its sequence's cache blocks, in order.
    """

    row: int
    position: int
    block_ids: IntArray


class _Tables(NamedTuple):
    """What layers share that have the same heads and the same chunks.

    Attributes:
        columns: LongTensor [E], the rows of the cache that are read, heads of the cache being rows of their own.
        borders: LongTensor [S * H + 1], where each row's and head's columns begin, and the end.
        scores: CSR [S * H, rows of the cache], with E elements at these places; each layer writes them anew.
        weights: [E], the same after the softmax.
        softmaxes: (scores, weights), views [heads of rows with equally many keys, keys].
    """

    columns: Tensor
    borders: Tensor
    scores: Tensor
    weights: Tensor
    softmaxes: Sequence[tuple[Tensor, Tensor]]


def can_attend_single_rows(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has the products there and for this type."""
    return device.type == "cpu" and dtype in (torch.float32, torch.float64)


class SingleRows:
    """The rows of a batch whose sequences bring no other.

    Args:
        rows: in the order of the batch; there is at least one.
        block_size: tokens in a block.
        is_whole_batch: whether there are no other rows.
    """

    def __init__(self, rows: Sequence[SingleRow], block_size: int, *, is_whole_batch: bool) -> None:
        self._rows = rows
        self._block_size = block_size
        self._places = None if is_whole_batch else torch.tensor([row.row for row in rows])
        self._tables: dict[int | None, _Tables] = {}

    def attend(
        self, q: Tensor, keys: Tensor, values: Tensor, scale: float, chunk_size: int | None, out: Tensor
    ) -> None:
        """Fill the rows of ``out``, by which the cache has their keys and values already.

        Args:
            q: [n, H, D], of the whole batch.
            keys: [num_blocks, block_size, Hkv, D]; the same number of each in all layers.
            values: alike.
            scale: factor of the scores.
            chunk_size: see ``paged_attention``.
            out: [n, H, D].
        """
        if chunk_size not in self._tables:
            self._tables[chunk_size] = self._make_tables(q, keys, chunk_size)
        tables = self._tables[chunk_size]
        own = q if self._places is None else q.index_select(0, self._places)
        flat_keys, flat_values = keys.flatten(0, 2), values.flatten(0, 2)
        torch.sparse.sampled_addmm(
            tables.scores, own.flatten(0, 1), flat_keys.t(), beta=0.0, alpha=scale, out=tables.scores
        )
        for scores, weights in tables.softmaxes:
            torch.softmax(scores, -1, out=weights)
        attended = F.embedding_bag(
            tables.columns,
            flat_values,
            tables.borders,
            mode="sum",
            per_sample_weights=tables.weights,
            include_last_offset=True,
        ).view_as(own)
        if self._places is None:
            out.copy_(attended)
        else:
            out.index_copy_(0, self._places, attended)

    def _make_tables(self, q: Tensor, keys: Tensor, chunk_size: int | None) -> _Tables:
        num_heads, num_kv_heads = q.shape[1], keys.shape[2]
        heads = np.arange(num_heads)[:, None] // (num_heads // num_kv_heads)
        slots = [self._slots(row, chunk_size) for row in self._rows]
        lengths = np.repeat([len(own) for own in slots], num_heads)
        borders = np.concatenate([[0], np.cumsum(lengths)])
        columns = np.empty(borders[-1], np.int64)
        for index, own in enumerate(slots):
            first, stop = borders[index * num_heads], borders[(index + 1) * num_heads]
            np.add(own * num_kv_heads, heads, out=columns[first:stop].reshape(num_heads, -1))
        scores, weights = torch.zeros(len(columns), dtype=q.dtype), torch.empty(len(columns), dtype=q.dtype)
        sampled = _sparse(torch.from_numpy(borders), torch.from_numpy(columns), scores, keys[..., 0].numel())
        softmaxes = tuple(zip(_by_length(scores, lengths), _by_length(weights, lengths), strict=True))
        return _Tables(sampled.col_indices(), sampled.crow_indices(), sampled, weights, softmaxes)

    def _slots(self, row: SingleRow, chunk_size: int | None) -> IntArray:
        """Where the keys of a row are: block * block_size + offset, [keys]."""
        first = 0 if chunk_size is None else row.position - row.position % chunk_size
        size = self._block_size
        first_block = first // size
        blocks = row.block_ids[first_block : row.position // size + 1, None] * size + np.arange(size)
        start = first_block * size
        return blocks.ravel()[first - start : row.position + 1 - start]


def _by_length(scores: Tensor, lengths: IntArray) -> Iterator[Tensor]:
    """[E] in views [rows and heads that follow one another and have equally many keys, keys]."""
    first = 0
    for length, run in groupby(lengths.tolist()):
        rows = sum(1 for _ in run)
        yield scores[first : first + rows * length].view(rows, length)
        first += rows * length


def _sparse(borders: Tensor, columns: Tensor, values: Tensor, num_columns: int) -> Tensor:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta")
        warnings.filterwarnings("ignore", "Sparse invariant checks are implicitly disabled")
        size = (len(borders) - 1, num_columns)
        return torch.sparse_csr_tensor(borders, columns, values, size, check_invariants=False)

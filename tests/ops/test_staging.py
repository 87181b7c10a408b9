"""Many arrays in one copy."""

from __future__ import annotations

import numpy as np
import torch

from chiasm.ops.staging import Staging, packed_size, unpacked

CPU = torch.device("cpu")


def test_arrays_come_through_whatever_their_types_and_sizes() -> None:
    staging = Staging(CPU)
    rng = np.random.default_rng(0)
    kept = []
    for _ in range(5):
        arrays = [
            rng.integers(0, 100, size).astype(dtype)
            for size, dtype in (((3,), np.int64), ((2, 5), np.int32), ((0,), np.int64), ((7,), np.uint8))
        ]
        kept.append((arrays, staging.move(arrays)))
    for arrays, tensors in kept:  # later copies leave earlier ones alone
        for array, tensor in zip(arrays, tensors, strict=True):
            assert np.array_equal(array, tensor.numpy())
            assert tensor.numpy().dtype == array.dtype


def test_a_fixed_place_keeps_its_views() -> None:
    first, second = ([np.full(3, i, np.int64), np.full((2, 2), i, np.int32)] for i in (1, 2))
    place = torch.zeros(packed_size(first), dtype=torch.uint8)
    views = unpacked(place, first)
    staging = Staging(CPU)
    for arrays in (first, second):
        staging.move(arrays, into=place)
        for array, view in zip(arrays, views, strict=True):
            assert np.array_equal(array, view.numpy())


def test_rows_stand_behind_one_another() -> None:
    staging = Staging(CPU)
    parts = [torch.randint(0, 256, (n, 6), dtype=torch.uint8) for n in (2, 5, 1)]
    assert torch.equal(staging.move_rows(parts, 6), torch.cat(parts))
    assert staging.move_rows([], 6).shape == (0, 6)

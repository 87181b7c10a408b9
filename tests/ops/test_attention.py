"""Attention within segments."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from chiasm.ops.attention import segment_attention
from chiasm.ops.segments import Run, Segments

LENGTHS = {
    "one segment": [12],
    "equal neighbours": [4, 4, 4, 4],
    "windows with edges": [16, 16, 8, 8, 4, 16, 16, 8],
    "single rows": [1, 1, 5, 1],
}


def test_segments_join_equal_neighbours() -> None:
    segments = Segments.from_lengths([4, 4, 2, 4])
    assert segments.runs == (Run(0, 2, 4), Run(8, 1, 2), Run(10, 1, 4))
    assert segments.num_rows == 14


def test_no_segments_have_no_rows() -> None:
    assert Segments.from_lengths([]).num_rows == 0


@pytest.mark.parametrize("name", LENGTHS)
def test_rows_attend_within_their_segment(name: str) -> None:
    lengths = LENGTHS[name]
    qkv = torch.randn(sum(lengths), 9, 8, dtype=torch.float64)
    q, k, v = qkv.split(3, dim=1)  # strided, as a fused projection leaves them
    expected = [
        F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in parts), scale=0.3).transpose(0, 1)
        for parts in zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True)
    ]
    computed = segment_attention(q, k, v, Segments.from_lengths(lengths), 0.3)
    torch.testing.assert_close(computed, torch.cat(expected), rtol=0, atol=1e-12)

"""Attention within segments."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from chiasm.ops.attention import attend_memory, attend_unit, segment_attention
from chiasm.ops.segments import Run, Segments
from tests.rounding import assert_equal_but_for_rounding

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
    assert_equal_but_for_rounding(computed, torch.cat(expected))


@pytest.mark.parametrize("num_padding", [0, 1, 5, 11])
def test_padding_is_seen_and_sees_all_but_padding(num_padding: int) -> None:
    """Against a mask, in whole segments and for any neighbouring rows of one."""
    length, num_core = 12, 12 - num_padding
    q, k, v = torch.randn(2 * length, 9, 8, dtype=torch.float64).split(3, dim=1)
    mask = torch.ones(length, length, dtype=torch.bool)
    mask[num_core:, num_core:] = False
    expected = [
        F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in parts), attn_mask=mask, scale=0.3).transpose(0, 1)
        for parts in zip(q.split(length), k.split(length), v.split(length), strict=True)
    ]
    segments = Segments.padded([(length, num_padding)] * 2)
    assert segments.runs == (Run(0, 2, length, num_padding),)
    assert_equal_but_for_rounding(segment_attention(q, k, v, segments, 0.3), torch.cat(expected))
    for start, stop in ((0, 12), (0, 3), (4, 9), (11, 12)):
        own = attend_unit(q[start:stop], k[:length], v[:length], 0.3, first_row=start, num_padding=num_padding)
        assert_equal_but_for_rounding(own, expected[0][start:stop])


@pytest.mark.parametrize("num_rows", [1, 7])
def test_query_heads_of_a_group_share_their_keys_and_values(num_rows: int) -> None:
    q, k, v = (torch.randn(rows, heads, 8, dtype=torch.float64) for rows, heads in ((num_rows, 6), (5, 2), (5, 2)))
    expected = F.scaled_dot_product_attention(*(x.transpose(0, 1) for x in (q, k, v)), scale=0.3, enable_gqa=True)
    assert_equal_but_for_rounding(attend_memory(q, k, v, 0.3), expected.transpose(0, 1))

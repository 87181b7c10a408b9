"""Attention within segments by a variable-length kernel, whose contract is emulated in plain torch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from chiasm.ops.attention import segment_attention
from chiasm.ops.segments import Segments
from chiasm.ops.varlen import RunByRun, VarlenKernel, choose_segment_kernel
from tests.rounding import assert_equal_but_for_rounding

CPU = torch.device("cpu")
SEGMENTS = {
    "windows with edges": [(16, 0), (16, 0), (8, 0), (4, 0), (16, 0), (1, 0)],
    "padding": [(12, 5), (12, 5), (7, 0), (9, 8), (12, 0)],
    "one": [(6, 0)],
}


class EmulatedVarlen:
    """Does what ``torch.nn.attention.varlen.varlen_attn`` says that it does, and checks what it is given."""

    def __init__(self, *, has_room: bool = False) -> None:
        self.has_room = has_room  # for longer segments than there are, and for more, which are empty
        self.num_calls = 0

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        cu_seq_q: Tensor,
        cu_seq_k: Tensor,
        max_q: int,
        max_k: int,
        *,
        scale: float,
    ) -> Tensor:
        self.num_calls += 1
        assert {cu_seq_q.dtype, cu_seq_k.dtype} == {torch.int32}
        assert query.shape[2] % 8 == 0
        assert query.stride(-1) == key.stride(-1) == value.stride(-1) == 1
        assert int(cu_seq_q[-1]) == len(query)
        longest = [int(borders.diff().max()) for borders in (cu_seq_q, cu_seq_k)]
        assert longest == [max_q, max_k] or (self.has_room and longest[0] <= max_q and longest[1] <= max_k)
        assert cu_seq_q.shape == cu_seq_k.shape
        assert int(cu_seq_k[-1]) == len(key) == len(value)
        out = torch.full_like(query, torch.nan)
        for i, (start, stop) in enumerate(zip(cu_seq_q[:-1].tolist(), cu_seq_q[1:].tolist(), strict=True)):
            first, last = cu_seq_k[i : i + 2].tolist()
            parts = (query[start:stop], key[first:last], value[first:last])
            out[start:stop] = F.scaled_dot_product_attention(
                *(part.transpose(0, 1) for part in parts), scale=scale
            ).transpose(0, 1)
        return out


def rows(num_rows: int, head_dim: int) -> list[Tensor]:
    return list(torch.randn(num_rows, 9, head_dim, dtype=torch.float64).split(3, dim=1))


@pytest.mark.parametrize("head_dim", [8, 12, 20])
@pytest.mark.parametrize("name", SEGMENTS)
def test_one_call_equals_a_call_for_each_run(name: str, head_dim: int) -> None:
    segments = Segments.padded(SEGMENTS[name])
    q, k, v = rows(segments.num_rows, head_dim)
    op = EmulatedVarlen()
    kernel = VarlenKernel(op, CPU)
    expected = segment_attention(q, k, v, segments, 0.3)
    for _ in range(2):  # the second time with what was kept
        computed = segment_attention(q, k, v, segments, 0.3, kernel)
        assert_equal_but_for_rounding(computed, expected)
    assert op.num_calls == (4 if name == "padding" else 2)


def test_random_segments() -> None:
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        lengths = torch.randint(1, 20, (int(torch.randint(1, 12, (1,), generator=generator)),), generator=generator)
        segments = Segments.padded((n, int(torch.randint(0, n, (1,), generator=generator))) for n in lengths.tolist())
        q, k, v = rows(segments.num_rows, 8)
        computed = segment_attention(q, k, v, segments, 0.3, VarlenKernel(EmulatedVarlen(), CPU))
        assert_equal_but_for_rounding(computed, segment_attention(q, k, v, segments, 0.3))


class _Shared:
    """The first rows, which attend with rows elsewhere; here they become zero."""

    num_rows = 5

    def begin(self, q: Tensor, k: Tensor, v: Tensor) -> _Shared:
        assert len(q) == len(k) == len(v) == self.num_rows
        self.shape = q.shape
        return self

    def finish(self, scale: float) -> Tensor:
        return torch.zeros(self.shape, dtype=torch.float64)


def test_rows_of_cut_segments_stay_out_of_the_call() -> None:
    segments = Segments.padded([(4, 0), (6, 2)], _Shared())
    q, k, v = rows(15, 8)
    computed = segment_attention(q, k, v, segments, 0.3, VarlenKernel(EmulatedVarlen(), CPU))
    assert_equal_but_for_rounding(computed, segment_attention(q, k, v, segments, 0.3))
    only_cut = Segments((), _Shared())
    own = [x[:5] for x in (q, k, v)]
    assert not segment_attention(*own, only_cut, 0.3, VarlenKernel(EmulatedVarlen(), CPU)).any()


@pytest.mark.parametrize(
    ("device", "dtype", "head_dim", "words"),
    [
        ("cpu", torch.bfloat16, 64, "no variable-length kernel on cpu"),
        ("cuda", torch.float32, 64, "float16 and bfloat16, not float32"),
        ("cuda", torch.bfloat16, 264, "at most 256 elements, not 264"),
    ],
)
def test_what_torch_does_not_take_falls_back_with_the_reason(
    device: str, dtype: torch.dtype, head_dim: int, words: str
) -> None:
    chosen = choose_segment_kernel(torch.device(device), dtype, head_dim)
    assert isinstance(chosen.kernel, RunByRun)
    assert words in chosen.reason


@pytest.mark.parametrize(("head_dim", "words"), [(80, "one call"), (20, "heads of 20 filled up")])
def test_gpus_take_torchs_kernel(head_dim: int, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    chosen = choose_segment_kernel(torch.device("cuda:0"), torch.bfloat16, head_dim)
    assert isinstance(chosen.kernel, VarlenKernel)
    assert words in chosen.reason
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "the GPU has 7.5" in choose_segment_kernel(torch.device("cuda:0"), torch.bfloat16, head_dim).reason

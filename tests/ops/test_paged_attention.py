"""Causal attention over cache blocks."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from chiasm.ops.paged_attention import KVCache, SequenceRows, build_batch, paged_attention
from chiasm.ops.single_rows import MOST_KEYS
from tests.rounding import assert_equal_but_for_rounding

CPU = torch.device("cpu")
BLOCK_SIZE = 4
HEAD_DIM = 8
SCALE = 0.4


@dataclass
class History:
    """Every query, key and value of one sequence, and its blocks."""

    q: Tensor
    k: Tensor
    v: Tensor
    block_ids: list[int]


def make_history(num_tokens: int, num_heads: int, num_kv_heads: int, block_ids: list[int]) -> History:
    def random(heads: int) -> Tensor:
        return torch.randn(num_tokens, heads, HEAD_DIM, dtype=torch.float64)

    return History(random(num_heads), random(num_kv_heads), random(num_kv_heads), block_ids)


def expected_output(history: History, chunk_size: int | None = None) -> Tensor:
    """[n, H, D], by the definition."""
    group = history.q.shape[1] // history.k.shape[1]
    k, v = (x.repeat_interleave(group, dim=1) for x in (history.k, history.v))
    scores = torch.einsum("ihd,jhd->hij", history.q, k) * SCALE
    future = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    if chunk_size is not None:
        chunks = torch.arange(len(k)) // chunk_size
        future |= chunks[:, None] != chunks
    return torch.einsum("hij,jhd->ihd", scores.masked_fill(future, -torch.inf).softmax(-1), v)


def run_steps(
    histories: list[History], steps: list[list[int]], num_blocks: int, chunk_size: int | None = None
) -> tuple[list[Tensor], KVCache]:
    """Outputs of each sequence when every step computes so many rows of each; also the cache."""
    cache = KVCache.empty(num_blocks, BLOCK_SIZE, histories[0].k.shape[1], HEAD_DIM, torch.float64, CPU)
    for content in (cache.keys, cache.values):
        content.fill_(torch.nan)  # what was not written must not be read
    outputs: list[list[Tensor]] = [[] for _ in histories]
    done = [0] * len(histories)
    for step in steps:
        parts = [(i, slice(done[i], done[i] + rows)) for i, rows in enumerate(step) if rows]
        rows = [SequenceRows(part.start, part.stop - part.start, histories[i].block_ids) for i, part in parts]
        q, k, v = (torch.cat([getattr(histories[i], name)[part] for i, part in parts]) for name in "qkv")
        batch = build_batch(rows, BLOCK_SIZE, CPU)
        out = paged_attention(q, k, v, cache, batch, SCALE, chunk_size)
        for (i, part), piece in zip(parts, batch.slices, strict=True):
            outputs[i].append(out[piece.start : piece.stop])
            done[i] = part.stop
    return [torch.cat(pieces) for pieces in outputs], cache


@pytest.mark.parametrize(("num_heads", "num_kv_heads"), [(4, 4), (6, 2), (5, 1)])
def test_chunks_and_decoding_equal_the_definition(num_heads: int, num_kv_heads: int) -> None:
    histories = [
        make_history(11, num_heads, num_kv_heads, [3, 4, 5]),
        make_history(9, num_heads, num_kv_heads, [7, 1, 6]),
        make_history(1, num_heads, num_kv_heads, [2]),
    ]
    steps = [[4, 9, 0], [5, 0, 1], [1, 0, 0], [1, 0, 0]]
    outputs, _ = run_steps(histories, steps, num_blocks=8)
    for history, output in zip(histories, outputs, strict=True):
        assert_equal_but_for_rounding(output, expected_output(history))


@pytest.mark.parametrize("chunks", [[600], [100, 500]], ids=str)
def test_a_prefill_of_several_tiles_equals_the_definition(chunks: list[int]) -> None:
    history = make_history(600, 2, 1, list(range(150)))
    [output], _ = run_steps([history], [[chunk] for chunk in chunks], num_blocks=150)
    assert_equal_but_for_rounding(output, expected_output(history))


@pytest.mark.parametrize("chunk_size", [1, 3, 4, 6, 11, 100])
@pytest.mark.parametrize("num_kv_heads", [1, 6])
def test_rows_attend_within_their_chunk(chunk_size: int, num_kv_heads: int) -> None:
    """Whether chunks end with blocks or not, in one step or over several."""
    histories = [make_history(23, 6, num_kv_heads, [3, 4, 5, 6, 7, 8]), make_history(9, 6, num_kv_heads, [12, 1, 10])]
    for steps in ([[23, 9]], [[5, 0], [7, 3], [1, 1], [1, 1], [9, 4]]):
        outputs, _ = run_steps(histories, steps, 13, chunk_size)
        for history, output in zip(histories, outputs, strict=True):
            assert_equal_but_for_rounding(output, expected_output(history, chunk_size))


@pytest.mark.parametrize("block_ids", [[0, 1, 2, 3], [3, 1, 0, 2]], ids=["in order", "out of order"])
@pytest.mark.parametrize("num_new", [1, 2])
def test_blocks_before_a_chunk_are_not_read(block_ids: list[int], num_new: int) -> None:
    history = make_history(15, 2, 1, block_ids)
    start = 15 - num_new
    _, cache = run_steps([history], [[start]], 4)
    for blocks in (cache.keys, cache.values):
        blocks[block_ids[0]] = blocks[block_ids[1]] = torch.nan
    batch = build_batch([SequenceRows(start, num_new, block_ids)], BLOCK_SIZE, CPU)
    out = paged_attention(history.q[start:], history.k[start:], history.v[start:], cache, batch, SCALE, 8)
    assert_equal_but_for_rounding(out, expected_output(history, 8)[start:])


def test_a_single_row_is_the_same_in_any_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """To the last bit, whatever the others' lengths, and whether they bring more rows or not."""
    lengths = [5, 40, 17, 5, 1, 33]
    blocks = iter(torch.randperm(60).tolist())
    tables = [[next(blocks) for _ in range(-(-length // BLOCK_SIZE))] for length in lengths]
    cache = KVCache.empty(60, BLOCK_SIZE, 2, 64, torch.float32, CPU)
    q, k, v = (torch.randn(sum(lengths), heads, 64) for heads in (14, 2, 2))

    def attend(rows: list[int], counts: list[int], chunk_size: int | None) -> Tensor:
        batch = build_batch(
            [SequenceRows(lengths[i] - n, n, tables[i]) for i, n in zip(rows, counts, strict=True)], BLOCK_SIZE, CPU
        )
        own = torch.cat([torch.arange(n) + sum(lengths[: i + 1]) - n for i, n in zip(rows, counts, strict=True)])
        out = paged_attention(q[own], k[own], v[own], cache, batch, 0.3, chunk_size)
        return torch.stack([part[-1] for part in out.split(counts)])

    attend(list(range(len(lengths))), lengths, None)
    for chunk_size in (None, 7):
        alone = torch.cat([attend([i], [1], chunk_size) for i in range(len(lengths))])
        together = attend(list(range(len(lengths))), [1] * len(lengths), chunk_size)
        assert torch.equal(together, alone)
        mixed = attend([2, 1, 0, 5], [3, 1, 1, 1], chunk_size)
        assert torch.equal(mixed[1:], alone[[1, 0, 5]])
        with monkeypatch.context() as patch:
            patch.setattr("chiasm.ops.paged_attention.can_attend_single_rows", lambda *_: False)
            assert_equal_but_for_rounding(attend(list(range(6)), [1] * 6, chunk_size), alone)


def test_single_rows_are_gone_through_together() -> None:
    """As far as their tables may grow; the others one by one."""
    rows = [SequenceRows(9, 1, [0, 1, 2]), SequenceRows(0, 2, [3]), SequenceRows(MOST_KEYS - 11, 1, range(2**16))]
    batch = build_batch(rows, BLOCK_SIZE, CPU)
    assert [piece.start for piece in batch.others] == [1]
    batch = build_batch([*rows, SequenceRows(0, 1, [4])], BLOCK_SIZE, CPU)
    assert [piece.start for piece in batch.others] == [1, 4]
    assert [piece.start for piece in batch.slices] == [0, 1, 3, 4]


def test_only_the_slots_of_new_rows_are_written() -> None:
    history = make_history(6, 2, 2, [5, 2])
    _, cache = run_steps([history], [[4], [2]], num_blocks=7)
    assert torch.equal(cache.keys[[5, 2]].flatten(0, 1)[:6], history.k)
    assert torch.equal(cache.values[[5, 2]].flatten(0, 1)[:6], history.v)
    others = torch.tensor([0, 1, 3, 4, 6])
    assert cache.keys[others].isnan().all()
    assert cache.keys[2, 2:].isnan().all()


def test_build_batch_tells_rows_slots_and_runs_of_blocks() -> None:
    rows = [SequenceRows(3, 3, [4, 5, 6]), SequenceRows(0, 2, [9, 1])]
    batch = build_batch(rows, BLOCK_SIZE, CPU)
    assert [(piece.start, piece.stop, piece.num_tokens) for piece in batch.slices] == [(0, 3, 6), (3, 5, 2)]
    assert [piece.first_block for piece in batch.slices] == [4, None]
    assert batch.slots.tolist() == [4 * 4 + 3, 5 * 4, 5 * 4 + 1, 9 * 4, 9 * 4 + 1]

"""What a step asks of the language model, and how prompts are scored: slice by slice, on every rank."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from chiasm.engine.runner.allocations import AllocationCounter
from chiasm.engine.runner.biggest_step import _SAMPLING
from chiasm.engine.runner.packing import Part, pack
from chiasm.engine.runner.records import SequenceRecord
from chiasm.engine.runner.scoring import ScoredRows, score
from chiasm.sampling.rows import SamplingRow
from chiasm.sampling.sampler import sample
from chiasm.schema.plan import ScheduledRequest, StartedRequest
from chiasm.schema.sampling import SamplingParams
from tests.rounding import assert_equal_but_for_rounding

VOCAB_SIZE = 20


def part(name: str, start: int, num_tokens: int, *, samples: bool, scored: tuple[int, int] = (0, 0)) -> Part:
    """Some tokens of a prompt of nine."""
    ids = tuple(range(10, 19))
    sampling = SamplingParams(prompt_logprobs=len(name))
    record = SequenceRecord.of(StartedRequest(name, ids, 9, (), sampling), np.arange(9)[None], 0)
    return Part(record, ScheduledRequest(name, start, num_tokens, None, (), samples, scored))


def test_rows_that_are_sampled_come_before_those_that_are_scored() -> None:
    packed = pack(
        [
            part("a", 0, 4, samples=False, scored=(1, 4)),
            part("b", 8, 1, samples=True),
            part("c", 5, 4, samples=True, scored=(5, 8)),
            part("d", 0, 2, samples=False),
        ]
    )
    assert packed.step.token_ids.tolist() == [10, 11, 12, 13, 18, 15, 16, 17, 18, 10, 11]
    assert packed.num_sampled == 2
    assert packed.step.asked_rows.tolist() == [4, 8, 1, 2, 3, 5, 6, 7]
    assert not packed.asks_for_all


def test_as_many_rows_as_there_are_may_be_asked_for_in_another_order() -> None:
    scores, decodes = part("a", 3, 1, samples=False, scored=(3, 4)), part("b", 8, 1, samples=True)
    assert pack([scores, decodes]).step.asked_rows.tolist() == [1, 0]
    assert not pack([scores, decodes]).asks_for_all
    assert pack([decodes, scores]).asks_for_all
    assert pack([decodes, decodes]).asks_for_all


@pytest.mark.parametrize("num_rows", [1, 2, 5, 100])
def test_prompts_are_scored_in_slices_that_change_nothing(num_rows: int) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = torch.randn(7, 4, generator=generator), torch.randn(VOCAB_SIZE, 4, generator=generator)
    sizes: list[int] = []

    def compute_logits(rows: Tensor) -> Tensor:
        sizes.append(len(rows))
        return rows @ weight.T

    parts = [
        ScoredRows.of(*part("a", 0, 9, samples=True, scored=(0, 4))),
        ScoredRows.of(*part("bb", 2, 3, samples=False, scored=(2, 5))),
    ]
    found = score(hidden, parts, compute_logits, num_rows, is_reporting=True)
    assert sum(sizes) == 7
    assert max(sizes) <= num_rows
    expected = (hidden @ weight.T).log_softmax(-1)
    for name, tokens, lines in (("a", [11, 12, 13, 14], expected[:4]), ("bb", [13, 14, 15], expected[4:])):
        own = torch.tensor([entry.logprob for entry in found[name]])
        assert_equal_but_for_rounding(own, lines[range(len(tokens)), tokens])
        assert {len(entry.top) for entry in found[name]} == {len(name)}
    taking_part = len(sizes)
    assert score(hidden, parts, compute_logits, num_rows, is_reporting=False) == {}
    assert len(sizes) == 2 * taking_part, "a collective: every rank calls it as often"


def test_scoring_beside_sampling_takes_no_more_memory_than_sampling_alone() -> None:
    """Which a start reckons with: for as many sequences as there may be, in the way that takes most."""
    num_seqs, num_scored = 4, 80
    hidden, weight = torch.randn(num_scored, 8), torch.randn(20_000, 8)
    sampling, scoring = AllocationCounter(is_computing=True), AllocationCounter(is_computing=True)
    with torch.inference_mode(), sampling:
        rows = [SamplingRow("", _SAMPLING, [0, 0], 1)] * num_seqs
        sample(hidden[:num_seqs] @ weight.T, rows, ())
    with torch.inference_mode(), scoring:
        logits = hidden[:num_seqs] @ weight.T
        parts = [ScoredRows("a", [1] * num_scored, 20)]
        score(hidden, parts, lambda rows: rows @ weight.T, num_seqs, is_reporting=True)
    assert len(logits) == num_seqs
    assert 0 < scoring.peak_bytes < sampling.peak_bytes

from __future__ import annotations

import math

import pytest
import torch

from chiasm.sampling.logprobs import report


def test_each_row_tells_of_its_own_token_and_as_many_of_the_likeliest_as_it_asks_for() -> None:
    logprobs = torch.randn(5, 30, generator=torch.Generator().manual_seed(0)).log_softmax(-1)
    tokens, nums_top = [3, 29, 0, 7, 7], [0, 1, 20, 3, 40]
    for line, token, num_top, found in zip(
        logprobs, tokens, nums_top, report(logprobs, tokens, nums_top), strict=True
    ):
        assert found.logprob == line[token]
        assert found.rank == 1 + (line > line[token]).sum()
        best = line.sort(descending=True)
        assert [token for token, _ in found.top] == best.indices[:num_top].tolist()
        assert [logprob for _, logprob in found.top] == pytest.approx(best.values[:num_top].tolist())


def test_a_placeholder_beyond_the_vocabulary_can_not_come() -> None:
    (found,) = report(torch.zeros(1, 4).log_softmax(-1), [4], [1])
    assert (found.logprob, found.rank, len(found.top)) == (-math.inf, 5, 1)

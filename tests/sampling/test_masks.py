from __future__ import annotations

import numpy as np
import torch

from chiasm.sampling.masks import forbid_others
from chiasm.sampling.sampler import SamplingRow, sample
from chiasm.schema.sampling import SamplingParams

VOCAB_SIZE = 45  # no whole number of bytes


def mask_of(tokens: set[int], num_bits: int = 64) -> bytes:
    bits = [token in tokens for token in range(num_bits)]
    return np.packbits(np.array(bits), bitorder="little").tobytes()


def test_only_allowed_tokens_stay_and_other_rows_are_untouched() -> None:
    logits = torch.randn(4, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    forbid_others(logits, {1: mask_of({0, 7, 8, 44}), 3: mask_of({31, 50})})
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    for row, allowed in ((1, [0, 7, 8, 44]), (3, [31])):
        assert torch.isfinite(logits[row]).nonzero()[:, 0].tolist() == allowed
        assert torch.equal(logits[row, allowed], before[row, allowed])


def test_sampling_obeys_whatever_else_is_asked_for() -> None:
    rows = [
        SamplingRow(str(i), SamplingParams(max_tokens=None, seed=i, **fields), [1, 2, 3], 2)
        for i, fields in enumerate(({"temperature": 0.0}, {"top_k": 1}, {"top_p": 0.1}, {"repetition_penalty": 2.0}))
    ]
    allowed = {3, 17}
    for seed in range(20):
        logits = torch.randn(len(rows), VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))
        sampled = sample(logits, rows, (0,), dict.fromkeys(range(len(rows)), mask_of(allowed)))
        assert {token.token_id for token in sampled} <= allowed


def test_log_probabilities_are_the_models_own() -> None:
    logits = torch.randn(1, VOCAB_SIZE, generator=torch.Generator().manual_seed(0))
    row = SamplingRow("a", SamplingParams(max_tokens=None, logprobs=3, temperature=0.0), [1], 1)
    expected = logits.log_softmax(-1)[0]
    (token,) = sample(logits.clone(), [row], (0,), {0: mask_of({5})})
    assert token.token_id == 5
    assert token.logprob is not None
    assert token.logprob.logprob == float(expected[5])
    assert [i for i, _ in token.logprob.top] == expected.topk(3).indices.tolist()

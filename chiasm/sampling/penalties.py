"""Changes to logits that requests ask for, made for all sequences of a batch at once.

Shapes: B is sequences, V the size of the vocabulary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from chiasm.sampling.places import Places
from chiasm.sampling.rows import SamplingRow
from chiasm.schema.sampling import SamplingParams


def has_penalties(params: SamplingParams) -> bool:
    """Whether ``apply_penalties`` would change anything."""
    return (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) != (0.0, 0.0, 1.0)


def apply_biases(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Add in place what requests give to the logits of single tokens; [B, V] and B descriptions."""
    biases = Places()
    for index, row in enumerate(rows):
        for token, bias in (row.params.logit_bias or {}).items():
            biases.add(index, token, bias)
    if biases:
        logits[biases.index(logits)] += biases.numbers(logits)


def apply_penalties(logits: Tensor, rows: Sequence[SamplingRow]) -> None:
    """Penalise repeated tokens in place.

    The repetition penalty (Keskar et al. 2019, CTRL, section 4.1) divides positive logits of tokens seen in prompt or
    output and multiplies negative ones. Frequency and presence penalties are OpenAI's: ``count * frequency +
    (count > 0) * presence`` is subtracted, counting the output only.

    Args:
        logits: [B, V].
        rows: B descriptions.
    """
    seen, counted = Places(), Places()
    for index, row in enumerate(rows):
        params = row.params
        if params.repetition_penalty != 1.0:
            # A prompt may have placeholders that no answer can have.
            for token in {token for token in row.token_ids if token < logits.shape[-1]}:
                seen.add(index, token, params.repetition_penalty)
        if params.frequency_penalty or params.presence_penalty:
            for token, count in Counter(row.token_ids[row.num_prompt_tokens :]).items():
                counted.add(index, token, params.frequency_penalty * count + params.presence_penalty)
    if seen:
        places, penalties = seen.index(logits), seen.numbers(logits)
        values = logits[places]
        logits[places] = torch.where(values > 0, values / penalties, values * penalties)
    if counted:
        logits[counted.index(logits)] -= counted.numbers(logits)


def forbid_stop_tokens(logits: Tensor, rows: Sequence[SamplingRow], eos_token_ids: Sequence[int]) -> None:
    """Mask in place the tokens that would end answers shorter than ``min_tokens``; [B, V] and B descriptions."""
    stops = Places()
    for index, row in enumerate(rows):
        params = row.params
        if row.num_output_tokens < params.min_tokens:
            for token in {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}:
                stops.add(index, token, -torch.inf)
    if stops:
        logits[stops.index(logits)] = stops.numbers(logits)

"""Changes to logits that depend on what a sequence has said so far.

Shapes: V is the size of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from chiasm.schema.sampling import SamplingParams


def has_penalties(params: SamplingParams) -> bool:
    """Whether ``apply_penalties`` would change anything."""
    return (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) != (0.0, 0.0, 1.0)


def apply_penalties(logits: Tensor, params: SamplingParams, prompt: Sequence[int], output: Sequence[int]) -> None:
    """Penalise repeated tokens in place.

    The repetition penalty (Keskar et al. 2019, CTRL, section 4.1) divides positive logits of tokens seen in prompt or
    output and multiplies negative ones. Frequency and presence penalties are OpenAI's: ``count * frequency +
    (count > 0) * presence`` is subtracted, counting the output only.

    Args:
        logits: of one sequence, [V].
        params: its parameters.
        prompt: its prompt's tokens.
        output: its tokens generated so far.
    """
    if params.repetition_penalty != 1.0:
        # A prompt may have placeholders that no answer can have.
        tokens = sorted({token for token in (*prompt, *output) if token < len(logits)})
        seen = torch.tensor(tokens, dtype=torch.int64, device=logits.device)
        values = logits[seen]
        penalty = params.repetition_penalty
        logits[seen] = torch.where(values > 0, values / penalty, values * penalty)
    if output and (params.frequency_penalty or params.presence_penalty):
        tokens, counts = torch.tensor(output, device=logits.device).unique(return_counts=True)
        logits[tokens] -= params.frequency_penalty * counts + params.presence_penalty


def forbid_stop_tokens(logits: Tensor, params: SamplingParams, eos_token_ids: Sequence[int], num_output: int) -> None:
    """Mask in place the tokens that would end an answer shorter than ``min_tokens``. ``logits`` is [V]."""
    if num_output < params.min_tokens:
        stops = {*params.stop_token_ids, *(() if params.ignore_eos else eos_token_ids)}
        logits[sorted(stops)] = -torch.inf

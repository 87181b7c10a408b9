"""When a sequence ends."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from chiasm.engine.scheduler.sequence import Sequence
from chiasm.schema.output import FinishReason, SequenceDelta
from chiasm.schema.plan import Failure, ScheduledRequest


@dataclass(frozen=True)
class Finish:
    """Why a sequence ends, and the token of ``stop_token_ids`` that did it, if one did."""

    reason: FinishReason
    stop_token_id: int | None = None


def finish_of(sequence: Sequence, eos_token_ids: Collection[int], max_model_len: int) -> Finish | None:
    """Whether the sequence ends with its newest token. Stop strings are the frontend's to see.

    Tokens before ``min_tokens`` can't be stop tokens: the sampler masks those.
    """
    sampling = sequence.request.sampling
    newest = sequence.token_ids[-1]
    if newest in sampling.stop_token_ids:
        return Finish("stop", newest)
    if not sampling.ignore_eos and newest in eos_token_ids:
        return Finish("stop")
    is_full = len(sequence.token_ids) >= max_model_len
    if is_full or (sampling.max_tokens is not None and sequence.num_output_tokens >= sampling.max_tokens):
        return Finish("length")
    return None


def failure_of(sequence: Sequence, scheduled: ScheduledRequest, failed_units: Mapping[str, str]) -> str | None:
    """Why the sequence could not be computed in a step, if it reads a unit that failed; these are told by key."""
    start = scheduled.num_computed_tokens
    for placed in sequence.units.between(start, start + scheduled.num_new_tokens):
        if placed.unit.key in failed_units:
            return failed_units[placed.unit.key]
    return None


def failed_delta(sequence: Sequence, failure: Failure) -> SequenceDelta:
    """The last news of a sequence that can't go on."""
    return SequenceDelta(sequence.request_id, finish_reason="error", error=failure.reason, error_param=failure.param)

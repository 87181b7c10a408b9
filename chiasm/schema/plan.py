"""The scheduler's decision for one step, sent as it is to every rank, and what comes back.

A plan holds no tensors and needs no reply to be understood: a rank that obeys every plan in turn has the state
that the scheduler believes it has.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from chiasm.schema.media import MediaItem, Unit
from chiasm.schema.sampling import SamplingParams

Exchange = Literal["none", "all-gather", "all-to-all"]
"""How the ranks that share a unit attend to all of it: each gets the keys and values of all rows, or all rows of some
heads."""


class Share(msgspec.Struct, frozen=True):
    """The rows of a unit that one rank computes.

    Attributes:
        rank: of the encoder's group.
        start: its first row, in the unit's cut order (``vision.units.UnitLayout``).
        stop: one past its last row; the shares of a unit follow one another and none is empty.
    """

    rank: int
    start: int
    stop: int

    @property
    def num_rows(self) -> int:
        """Rows in it."""
        return self.stop - self.start


class Assignment(msgspec.Struct, frozen=True):
    """Who computes a unit.

    Attributes:
        unit: the unit.
        shares: one for a whole unit, more for one that is cut, each of another rank; none where every rank computes
            its heads of every row (the encoder's weights are sharded).
        exchange: what its ranks do in layers with full attention; "none" unless it is cut.
    """

    unit: Unit
    shares: tuple[Share, ...]
    exchange: Exchange = "none"

    @property
    def is_cut(self) -> bool:
        """Whether more than one rank holds rows of it."""
        return len(self.shares) > 1


class VisionPlan(msgspec.Struct, frozen=True):
    """Which rank computes which rows of what.

    Attributes:
        assignments: one for each unit to encode, in order of first need.
        reason: one sentence that says why this placement.
        predicted_seconds: from the start to the last feature on every rank, by the cost model.
    """

    assignments: tuple[Assignment, ...]
    reason: str
    predicted_seconds: float

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units to encode, each once."""
        return tuple(assignment.unit for assignment in self.assignments)


class VisionStep(msgspec.Struct, frozen=True):
    """What a step does of a vision plan: all of it, or some stages of everybody's passes through the tower.

    Attributes:
        plan: the same in every step until its last stage is done.
        start: stages done in steps before. 0 begins the plan; one that was left under way is given up then.
        stop: stages done at the end of this step, of ``EncoderShape.num_stages``.
        predicted_seconds: of this step's stages, by the cost model.
    """

    plan: VisionPlan
    start: int
    stop: int
    predicted_seconds: float


class StartedRequest(msgspec.Struct, frozen=True):
    """A sequence that the ranks have not seen, or must see anew after a preemption.

    Attributes:
        request_id: its name.
        token_ids: all its tokens so far: the prompt, and after a preemption what was generated.
        num_prompt_tokens: how many of them are the prompt.
        items: its media.
        sampling: how to decode it.
        banned: see ``EngineRequest``.
    """

    request_id: str
    token_ids: tuple[int, ...]
    num_prompt_tokens: int
    items: tuple[MediaItem, ...]
    sampling: SamplingParams
    banned: tuple[tuple[int, ...], ...] = ()


class ScheduledRequest(msgspec.Struct, frozen=True):
    """The part of a sequence that is computed in this step.

    Attributes:
        request_id: its name.
        num_computed_tokens: tokens whose keys and values are in the cache before this step.
        num_new_tokens: tokens to compute now, starting there.
        new_token_id: the token sampled for it in the step before, to append first; None while it prefills.
        new_block_ids: cache blocks added to the end of its block table.
        is_sampling: whether a token is sampled after its last new token.
        scored: of these tokens, from which to which the prompt's next ones are reported with their log-probabilities.
    """

    request_id: str
    num_computed_tokens: int
    num_new_tokens: int
    new_token_id: int | None
    new_block_ids: tuple[int, ...]
    is_sampling: bool
    scored: tuple[int, int] = (0, 0)


class StepPlan(msgspec.Struct, frozen=True):
    """Everything that one step does.

    Attributes:
        step: counts up from 0.
        dropped: sequences to forget first (finished, aborted or preempted).
        evicted: unit keys whose features are dropped from the encoder cache first.
        started: sequences to take up.
        vision: units to encode, or to go on with; None when the encoder does nothing, and leaves what is under way.
        scheduled: tokens to compute, in the order of the packed batch.
    """

    step: int
    dropped: tuple[str, ...]
    evicted: tuple[str, ...]
    started: tuple[StartedRequest, ...]
    vision: VisionStep | None
    scheduled: tuple[ScheduledRequest, ...]


class TokenLogprob(msgspec.Struct, frozen=True):
    """Log-probability of a token and of the likeliest ones in its place, under the model's own distribution.

    Attributes:
        logprob: of the token, in nats.
        rank: 1 for the likeliest token of the vocabulary.
        top: (token id, logprob) of the likeliest tokens, best first.
    """

    logprob: float
    rank: int
    top: tuple[tuple[int, float], ...]


class SampledToken(msgspec.Struct, frozen=True):
    """One new token of one sequence.

    Attributes:
        request_id: its name.
        token_id: the token.
        logprob: if it was asked for.
        is_stuck: whether the request excludes every token, so that this one means nothing.
    """

    request_id: str
    token_id: int
    logprob: TokenLogprob | None = None
    is_stuck: bool = False


class Failure(msgspec.Struct, frozen=True):
    """Why a sequence can't go on.

    Attributes:
        reason: for the user.
        param: the field of the request at fault, if it is known.
    """

    reason: str
    param: str | None


class StepResult(msgspec.Struct, frozen=True):
    """What rank 0 reports of a step.

    Attributes:
        step: the plan's number.
        sampled: new tokens, for the sequences that were sampled.
        failed_units: unit key -> reason, for units that no rank could encode, told once; their sequences were not
            computed.
        encoder_seconds: time of each rank's own part in this step.
        encoder_makespan: seconds until every rank was through with this step's part of the vision plan, and with its
            last one had all features, on rank 0.
        encoder_exchanged_bytes: what each rank received from others within layers of the tower, for cut units.
        encoder_passes: passes through the tower on rank 0 so far, by how they were launched; empty where there is but
            one way.
        compute_seconds: time of the language model and the sampler on rank 0; 0 where the encoder worked beside them.
        failed_sequences: request id -> why it has no next token; such sequences were sampled for nothing.
        prompt_logprobs: request id -> log-probabilities of the tokens behind those that were to be scored.
    """

    step: int
    sampled: tuple[SampledToken, ...]
    failed_units: dict[str, str]
    encoder_seconds: tuple[float, ...] = ()
    encoder_makespan: float = 0.0
    encoder_exchanged_bytes: tuple[int, ...] = ()
    encoder_passes: dict[str, int] = {}
    compute_seconds: float = 0.0
    failed_sequences: dict[str, Failure] = {}
    prompt_logprobs: dict[str, tuple[TokenLogprob, ...]] = {}

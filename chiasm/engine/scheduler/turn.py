"""What sequences claim of the encoder, who waits in a step, and for whom; the rule is ``EncoderPolicy.wave``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from chiasm.engine.cache.encoder_cache import EncoderCache
from chiasm.engine.scheduler.encoder_policy import Claim, EncoderPolicy, Grant, Need, Wait
from chiasm.engine.scheduler.sequence import Sequence
from chiasm.schema.media import Unit


def claim_of(sequence: Sequence, start: int, num_tokens: int, cache: EncoderCache) -> Claim:
    """The units that the next chunk of its prompt reads.

    Where text attends to units, it is all of those that it needs and doesn't keep yet, at once.

    Args:
        sequence: whose.
        start: the chunk's first token.
        num_tokens: the most that a chunk has.
        cache: of what is encoded already.
    """
    name, needs = sequence.request_id, list[Need]()
    if sequence.keeps_units:
        lacked = (
            one.unit for one in sequence.units.between(start, start + 1) if not cache.is_pinned_by(one.unit.key, name)
        )
        return Claim(name, [Need(unit, 0, 0) for unit in lacked], sequence.encoder_seconds, sequence.owed_seconds)
    end = start
    for placed in sequence.units.between(start, start + num_tokens):
        needs.append(Need(placed.unit, max(0, placed.start - end), placed.stop - end))
        end = placed.stop
    return Claim(name, needs, sequence.encoder_seconds, sequence.owed_seconds)


@dataclass(frozen=True)
class Turn:
    """How a step's encoding is given out.

    Attributes:
        claims: whose units are encoded.
        ahead: whose units are encoded in what is left.
        is_awaited: whether somebody waits for a token that this step gives, so that encoding has a budget.
        left_out: the first of those that are no part of the wave.
        waiting: sequences whose first token could come, and that wait for those in ``claims``.
        has_followers: whether more requests are about to come.
    """

    claims: Seq[Claim]
    ahead: Seq[Claim]
    is_awaited: bool
    left_out: Claim | None = None
    waiting: Seq[Sequence] = ()
    has_followers: bool = False

    def holds(self, is_there: Callable[[str], bool]) -> bool:
        """Whether first tokens are held back in this step.

        Args:
            is_there: whether a unit is encoded by the end of the step.
        """
        if self.is_awaited:
            return False
        return self.has_followers or not all(is_there(need.unit.key) for one in self.claims for need in one.needs)


def turn_of(
    sequences: Seq[Sequence],
    claims: Seq[Claim],
    ahead: Seq[Claim],
    policy: EncoderPolicy,
    cache: EncoderCache,
    *,
    has_followers: bool,
) -> Turn:
    """Decide it, in a step in which nobody decodes.

    Who waits does so for those only that had come when it began to, so that no stream of others keeps it for ever.

    Args:
        sequences: that run, or find a place beside them.
        claims: theirs.
        ahead: of those behind them.
        policy: that says who waits for whom.
        cache: of what is encoded already.
        has_followers: whether more requests are about to come.
    """
    lacking = [claim for claim in claims if not all(need.unit.key in cache for need in claim.needs)]
    names = {claim.request_id for claim in lacking}
    able = [sequence for sequence in sequences if sequence.request_id not in names]
    came_with = _came_with(able, sequences)
    wave = policy.wave(
        [claim for claim in lacking if claim.request_id in came_with],
        [_wait_of(sequence, policy) for sequence in able],
        is_ready=cache.__contains__,
        can_pin=cache.can_pin,
    )
    joined = {claim.request_id for claim in wave}
    if any(sequence.num_output_tokens for sequence in able) or not joined:
        return Turn(claims, ahead, is_awaited=bool(able))
    others = [claim for claim in lacking if claim.request_id not in joined]
    return Turn(
        [claim for claim in claims if claim not in others],
        [*others[1:], *ahead],
        is_awaited=False,
        left_out=others[0] if others else None,
        waiting=able,
        has_followers=has_followers,
    )


def _came_with(able: Seq[Sequence], sequences: Seq[Sequence]) -> set[str]:
    """Those that had come when the first of the able ones began to wait; all where none has."""
    newest = min((one.waits_until for one in able if one.waits_until is not None), default=None)
    return {one.request_id for one in sequences if newest is None or one.arrival <= newest}


def _wait_of(sequence: Sequence, policy: EncoderPolicy) -> Wait:
    own = sequence.own_seconds and policy.seconds_alone(sequence.own_seconds, sequence.num_prompt_tokens)
    return Wait(own, sequence.waited_seconds)


def charge(units: Iterable[Unit], grant: Grant, turn: Turn, sequences: Mapping[str, Sequence]) -> None:
    """Count what is encoded: for whom it was taken up, and for all whose first token can't come without it.

    Args:
        units: that are begun.
        grant: of which they are.
        turn: that it was made for.
        sequences: all, by name.
    """
    keys = {unit.key for unit in units}
    joined = {claim.request_id for claim in turn.claims}
    left_out = turn.left_out.request_id if turn.left_out else None
    for key in keys:
        name, seconds = grant.asked_by[key], grant.seconds[key]
        sequences[name].encoder_seconds += seconds
        if left_out == name:
            sequences[name].owed_seconds -= seconds
        elif left_out is not None and name in joined:
            sequences[left_out].owed_seconds += seconds
    for sequence in sequences.values():
        if sequence.num_output_tokens == 0:
            sequence.own_seconds += sum(grant.seconds[key] for key in keys & sequence.unit_keys)

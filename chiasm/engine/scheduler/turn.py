"""What sequences claim of the encoder, who waits in a step, and for whom; the rule is ``EncoderPolicy.wave``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass

from chiasm.engine.cache.encoder_cache import EncoderCache
from chiasm.engine.scheduler.encoder_policy import Claim, EncoderPolicy, Need, Wait
from chiasm.engine.scheduler.sequence import Sequence


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
        return Claim(name, [Need(unit, 0, 0) for unit in lacked], sequence.encoder_seconds)
    end = start
    for placed in sequence.units.between(start, start + num_tokens):
        needs.append(Need(placed.unit, max(0, placed.start - end), placed.stop - end))
        end = placed.stop
    return Claim(name, needs, sequence.encoder_seconds)


@dataclass(frozen=True)
class Turn:
    """How a step's encoding is given out.

    Attributes:
        claims: whose units are encoded.
        ahead: whose units are encoded in what is left.
        is_awaited: whether somebody waits for a token that this step gives, so that encoding has a budget.
        waiting: sequences whose first token could come, and that wait for those in ``claims``.
        has_followers: whether more requests are about to come.
    """

    claims: Seq[Claim]
    ahead: Seq[Claim]
    is_awaited: bool
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
    sequences: Iterable[Sequence],
    claims: Seq[Claim],
    ahead: Seq[Claim],
    policy: EncoderPolicy,
    cache: EncoderCache,
    *,
    has_followers: bool,
) -> Turn:
    """Decide it.

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
    waits = [Wait(sequence.encoder_seconds, sequence.waited_seconds) for sequence in able]
    wave = policy.wave(lacking, waits, is_ready=cache.__contains__, can_pin=cache.can_pin)
    joined = {claim.request_id for claim in wave}
    if any(sequence.num_output_tokens for sequence in able) or not joined:
        return Turn(claims, ahead, is_awaited=bool(able))
    others = [claim for claim in lacking if claim.request_id not in joined]
    return Turn(
        [claim for claim in claims if claim not in others],
        [*others, *ahead],
        is_awaited=False,
        waiting=able,
        has_followers=has_followers,
    )

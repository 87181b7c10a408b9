"""How much the vision encoder does in a step, and for whom. The whole policy is in this file.

**How much.** While no sequence decodes, a step encodes what its chunks of prompts read, as far as memory allows.
While one does, its next token waits for what is encoded, so a step encodes no more than its budget: a time, by the
cost model's prediction and how far off it was lately, or a number of patches. What the step reads of prompts is in
the budget too. ``NUM_RESTS`` steps without the encoder follow, so that most steps, and with them the median
inter-token latency, are what they would be without images. One unit is always taken up, and for each other rank one
that is no larger: if they exceed the budget, they go through the tower a few layers in a step, as many as don't, with
rests between. Until they are through nothing else is taken up. A layer is never divided. With an infinite budget
nobody watches tokens come: there are no rests either.

**For whom.** The budget is spent unit by unit. Half of the encoder's time goes to the sequence that came first, so
that a long video is finished however many small requests come behind it; the other half to the one that has had
least, so that they don't wait for the video's end.

**Together.** While nobody decodes, a first token waits until those that came with it have been encoded, up to
``WAVE`` times as long as its own request takes: they then decode side by side, at the price of one. If each began as
soon as it could, all later ones would be encoded in what decoding leaves. What nothing was encoded for, a text or a
picture that is known, never waits so. The first of those that would take too long gets as much of the encoder as all
who don't.

**Ahead.** What is left then goes to sequences that can't start yet: budget while others decode, else the time in
which ranks would only wait for the one with the largest unit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from math import ceil, inf
from typing import NamedTuple

from chiasm.config.engine import EncoderMode
from chiasm.engine.scheduler.step_times import StepTimes
from chiasm.schema.media import Unit
from chiasm.vision.cost import CostModel

NUM_RESTS = 2
"""Steps without the encoder after one with it, while sequences decode."""

DECODE_STEPS_PER_BUDGET = 4.0
"""The budget in decode steps, where the operator sets none: an encoding step then takes as long as five, and four
ninths of the time go to decoding."""

WAVE = 16.0
"""How many times as long as its own request takes a first token may wait for others."""

Fits = Callable[[Mapping[str, int]], bool]
"""Whether units (key -> tokens) can be held at once."""

_FIRST_BUDGET = 0.1  # seconds, until enough decode steps have been measured
_LEAST_BUDGET = 0.02


class EncoderLimits(NamedTuple):
    """What bounds a step's encoding.

    Attributes:
        patches: most in any step; see ``max_num_batched_patches``.
        step_seconds: while sequences decode; None takes ``DECODE_STEPS_PER_BUDGET`` measured decode steps.
        step_patches: while sequences decode, in place of a time.
    """

    patches: int
    step_seconds: float | None = None
    step_patches: int | None = None


class Need(NamedTuple):
    """A unit that a prompt reads next.

    Attributes:
        unit: it may be encoded already.
        num_before: tokens to compute before its own, from the end of the need before.
        num_tokens: these and its own.
    """

    unit: Unit
    num_before: int
    num_tokens: int


class Claim(NamedTuple):
    """What one sequence would have encoded.

    Attributes:
        request_id: of the sequence.
        needs: in the order of its prompt.
        seconds: of encoding that it has had.
        owed: seconds of encoding that others have had while it was left out of a wave.
    """

    request_id: str
    needs: Sequence[Need]
    seconds: float
    owed: float = 0.0


@dataclass
class Grant:
    """What may be encoded in this step.

    Attributes:
        units: by key, those for sequences ahead last.
        asked_by: the sequence that each was granted to, by key.
        seconds: predicted, by key; on one rank.
        num_read: tokens of prompts that read them in the step that does the last stage.
        stop: stages of the units' passes that this step does, counted from their start; they can be read from the
            step on that does the last one.
        num_tokens: of prompts that the step may read.
    """

    stop: int
    num_tokens: float = inf
    units: dict[str, Unit] = field(default_factory=dict)
    asked_by: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    num_read: int = 0


class Wait(NamedTuple):
    """A sequence whose first token could come in this step.

    Attributes:
        own: seconds that it takes alone; 0 if nothing is encoded for it.
        waited: seconds that it was held back for others.
    """

    own: float
    waited: float


@dataclass
class _Open:
    """A claim that may get more in this step."""

    place: int
    claim: Claim
    had: float
    next_need: int = 0


@dataclass
class _Room:
    """What is left of a step while it is given out.

    Attributes:
        patches: that memory has room for.
        seconds: of encoding and reading, not less what is given out.
        tokens: of prompts.
        token_seconds: of reading one.
        total: seconds of what is given out, on one rank.
        largest: of its units.
        num_read: tokens of prompts that read what is given out.
        reading: seconds of that.
        num_abreast: units that are taken up in any case, if none is larger than the first.
        waited_for: seconds of encoding that the step takes anyway, whatever is read.
    """

    patches: float
    seconds: float
    tokens: float
    token_seconds: float
    num_abreast: int
    total: float = 0.0
    largest: float = 0.0
    num_read: int = 0
    reading: float = 0.0
    waited_for: float = 0.0


class EncoderPolicy:
    """Grants units of the encoder's time; see the module.

    Args:
        limits: of a step.
        model: predicts a unit's time.
        mode: how the ranks share the encoder.
    """

    def __init__(self, limits: EncoderLimits, model: CostModel, mode: EncoderMode) -> None:
        self._limits = limits
        self._model = model
        self._is_even = mode == "weights" or (mode == "auto" and model.shape.can_cut_rows)
        self._num_abreast = model.num_ranks if mode == "auto" else 1
        self._times = StepTimes()
        self._num_rests = 0
        self._balance = 0.0  # seconds that went to who came first, less those that went to others

    @property
    def step_seconds(self) -> float:
        """The budget of a step in which sequences decode."""
        limits = self._limits
        if limits.step_seconds is not None:
            return limits.step_seconds
        times = self._times
        if times.decode_seconds is None:
            return _FIRST_BUDGET
        budget = max(_LEAST_BUDGET, DECODE_STEPS_PER_BUDGET * times.decode_seconds)
        return budget if times.is_decode_known else min(_FIRST_BUDGET, budget)

    def seconds_alone(self, encoder_seconds: float, num_tokens: int) -> float:
        """What a request takes that has the ranks for itself, so that nothing else is encoded or read.

        Args:
            encoder_seconds: predicted, on one rank.
            num_tokens: of its prompt.
        """
        encoding = encoder_seconds / self._model.num_ranks * self._times.slowness
        return encoding + num_tokens * self._times.token_seconds

    def wave(
        self, claims: Sequence[Claim], waits: Sequence[Wait], *, is_ready: Callable[[str], bool], can_pin: Fits
    ) -> list[Claim]:
        """Whose encoding first tokens wait for while nobody decodes, of those in ``claims``; in their order.

        Those that take least come first, as long as all together don't keep anybody too long, neither one that waits
        already nor the first of themselves, and find room.
        """
        lacked = {one.request_id: [need.unit for need in one.needs if not is_ready(need.unit.key)] for one in claims}
        seconds = {
            one.request_id: self.seconds_alone(
                sum(self._model.work(unit).seconds for unit in lacked[one.request_id]),
                sum(need.num_tokens for need in one.needs),
            )
            for one in claims
        }
        least = [(WAVE + 1) * min(seconds.values(), default=0.0)]
        room = min([WAVE * wait.own - wait.waited for wait in waits] or least)
        if self._limits.step_seconds == inf:
            room = inf
        joined, held = set(), dict[str, int]()
        for name in sorted(seconds, key=seconds.__getitem__):
            room -= seconds[name]
            held |= {unit.key: unit.num_tokens for unit in lacked[name]}
            if room < 0 or not can_pin(held):
                break
            joined.add(name)
        return [claim for claim in claims if claim.request_id in joined]

    def grant(
        self,
        claims: Sequence[Claim],
        ahead: Sequence[Claim],
        *,
        left_out: Claim | None = None,
        num_tokens: int,
        is_decoding: bool,
        is_ready: Callable[[str], bool],
        can_pin: Fits,
        can_keep: Fits,
    ) -> Grant:
        """Decide what is encoded in this step.

        Args:
            claims: of sequences that run or can start, in order of arrival.
            ahead: of sequences that can't start yet.
            left_out: of the first of those that are too long for a wave.
            num_tokens: of prompts that the step can take.
            is_decoding: whether a sequence waits for its next token.
            is_ready: whether a unit is encoded already.
            can_pin: whether there is room for these units until they are read in this step or soon after.
            can_keep: whether there is room for them until sequences that are ahead start.
        """
        grant = Grant(self._model.shape.num_stages)
        if not self._is_resting(is_decoding=is_decoding):
            room = self._room(num_tokens, is_decoding)
            self._share_out(claims, room, grant, is_ready, can_pin)
            grant.num_read = room.num_read
            if left_out is not None:
                self._pay_back(left_out, room, grant, is_ready, can_pin)
            if not is_decoding:
                room.seconds, room.waited_for = 0.0, self._expected(room.total, room.largest)
            room.tokens, room.token_seconds, room.num_abreast = inf, 0.0, 1
            if grant.units or is_decoding:
                self._share_out(ahead, room, grant, is_ready, can_keep)
        return self.go_on(grant, 0, is_decoding=is_decoding)

    def go_on(self, grant: Grant, start: int, *, is_decoding: bool) -> Grant:
        """Say how far passes over what was granted, which have come to stage ``start``, go on in this step."""
        units, seconds = list(grant.units.values()), 0.0
        if units:
            grant.stop = self._next_stop(grant, start, is_decoding=is_decoding)
            works = [self._model.work(unit) for unit in units]
            seconds = self._expected_of(units) * self._model.stages_share(works, start, grant.stop)
        grant.num_tokens = self._num_readable(seconds, is_decoding=is_decoding)
        return grant

    def _next_stop(self, grant: Grant, start: int, *, is_decoding: bool) -> int:
        """How far passes that have come to stage ``start`` go on in this step; no further where it is a rest.

        The steps that are left are as few as the budget allows, and alike. In the last one, the units are read.
        """
        num_stages = self._model.shape.num_stages
        if self._is_resting(is_decoding=is_decoding):
            return start
        units = list(grant.units.values())
        works = [self._model.work(unit) for unit in units]
        fitting, reading = self._fitting_share(units), 0.0
        if self._limits.step_patches is None and grant.num_read:
            times = self._times
            reading = (times.fixed_seconds + grant.num_read * times.token_seconds) / self._expected_of(units)

        def share(stop: int) -> float:
            return self._model.stages_share(works, start, stop) + (reading if stop == num_stages else 0.0)

        left = share(num_stages)
        if not is_decoding or left <= fitting:
            return num_stages
        even = left / ceil(left / fitting)
        stop = start + 1
        while share(stop) < even:
            stop += 1
        if stop > start + 1 and share(stop) > fitting:
            stop -= 1
        return stop

    def observe(
        self,
        *,
        is_decoding: bool,
        encoded: Sequence[Unit],
        stages: tuple[int, int],
        encoder_seconds: float,
        num_prompt_tokens: int,
        compute_seconds: float,
    ) -> None:
        """Take in a step that has ended.

        Args:
            is_decoding: whether a sequence waited for its next token.
            encoded: units that it encoded.
            stages: of their passes that it did: the first, and one past the last.
            encoder_seconds: what that took until the last rank was done.
            num_prompt_tokens: that it read.
            compute_seconds: what these and the next tokens of others took; 0 where it wasn't measured.
        """
        if encoded and encoder_seconds > 0:
            works = [self._model.work(unit) for unit in encoded]
            seconds = [work.seconds for work in works]
            predicted = self._makespan(sum(seconds), max(seconds)) * self._model.stages_share(works, *stages)
            self._times.add_encoder(predicted, encoder_seconds)
        if compute_seconds > 0:
            self._times.add_compute(
                compute_seconds,
                num_prompt_tokens=num_prompt_tokens,
                is_decoding=is_decoding,
                is_encoding=bool(encoded),
            )
        if not is_decoding:
            self._num_rests = 0
        elif encoded:
            self._num_rests = NUM_RESTS
        else:
            self._num_rests = max(0, self._num_rests - 1)

    def _is_resting(self, *, is_decoding: bool) -> bool:
        return is_decoding and self._num_rests > 0 and self._limits.step_seconds != inf

    def _num_readable(self, seconds: float, *, is_decoding: bool) -> float:
        """Tokens of prompts that fit into a step beside so many seconds of the encoder."""
        left = self.step_seconds - seconds
        if not is_decoding or left == inf or not self._times.token_seconds or self._limits.step_patches is not None:
            return inf
        return self._times.num_readable(left)

    def _fitting_share(self, units: Sequence[Unit]) -> float:
        """The part of passes over these units that a step has room for while a sequence decodes."""
        if self._limits.step_patches is not None:
            return self._limits.step_patches / sum(unit.num_rows for unit in units)
        return self.step_seconds / self._expected_of(units)

    def _expected_of(self, units: Sequence[Unit]) -> float:
        seconds = [self._model.work(unit).seconds for unit in units]
        return self._expected(sum(seconds), max(seconds))

    def _room(self, num_tokens: int, is_decoding: bool) -> _Room:
        limits, times = self._limits, self._times
        num_readable = min(num_tokens, self._num_readable(0.0, is_decoding=is_decoding))
        if not is_decoding:
            return _Room(limits.patches, inf, num_readable, 0.0, 1)
        if limits.step_patches is not None:
            return _Room(min(limits.patches, limits.step_patches), inf, num_readable, 0.0, 1)
        left = self.step_seconds - times.fixed_seconds
        return _Room(limits.patches, left, num_readable, times.token_seconds, self._num_abreast)

    def _share_out(
        self, claims: Sequence[Claim], room: _Room, grant: Grant, is_ready: Callable[[str], bool], fits: Fits
    ) -> None:
        """Give units to claims in turn; a claim whose next unit doesn't fit gets no more."""
        opened = [_Open(place, claim, claim.seconds) for place, claim in enumerate(claims)]
        given: dict[str, int] = {}
        while opened:
            chosen = opened[0] if self._balance <= 0 else min(opened, key=lambda one: (one.had, one.place))
            need = next(islice(chosen.claim.needs, chosen.next_need, None), None)
            if need is None or need.num_before >= room.tokens:
                opened.remove(chosen)
                continue
            unit = need.unit
            if not is_ready(unit.key) and unit.key not in grant.units:
                held = {**given, unit.key: unit.num_tokens}
                if not (fits(held) and self._is_in_budget(need, room, num_units=len(grant.units))):
                    opened.remove(chosen)
                    continue
                given = held
                seconds = self._give(chosen, unit, room, grant)
                if len(opened) > 1:
                    self._balance += seconds if chosen is opened[0] else -seconds
            room.tokens -= need.num_tokens
            room.num_read += need.num_tokens
            room.reading += need.num_tokens * room.token_seconds
            chosen.next_need += 1

    def _pay_back(self, claim: Claim, room: _Room, grant: Grant, is_ready: Callable[[str], bool], fits: Fits) -> None:
        """Give a claim as much as it is owed, by this step too."""
        chosen, held = _Open(0, claim, claim.seconds), {key: unit.num_tokens for key, unit in grant.units.items()}
        left = claim.owed + room.total
        for need in claim.needs:
            unit = need.unit
            if is_ready(unit.key) or unit.key in grant.units:
                continue
            held[unit.key] = unit.num_tokens
            left -= self._model.work(unit).seconds
            if left < 0 or unit.num_rows > room.patches or not fits(held):
                return
            self._give(chosen, unit, room, grant)

    def _is_in_budget(self, need: Need, room: _Room, *, num_units: int) -> bool:
        seconds = self._model.work(need.unit).seconds
        is_abreast = num_units < room.num_abreast and seconds <= room.largest
        encoding = self._expected(room.total + seconds, max(room.largest, seconds))
        reading = room.reading + need.num_tokens * room.token_seconds
        fits = encoding + reading <= room.seconds or encoding <= room.waited_for
        return num_units == 0 or (need.unit.num_rows <= room.patches and (fits or is_abreast))

    def _give(self, chosen: _Open, unit: Unit, room: _Room, grant: Grant) -> float:
        """Spend a unit's time on a claim; returns it."""
        seconds = self._model.work(unit).seconds
        room.patches -= unit.num_rows
        room.total += seconds
        room.largest = max(room.largest, seconds)
        # If one unit takes longer than there is room for, others go along as far as ranks would only wait for it.
        if (encoding := self._expected(room.total, room.largest)) > room.seconds:
            room.waited_for = encoding
        chosen.had += seconds
        grant.units[unit.key] = unit
        grant.asked_by[unit.key] = chosen.claim.request_id
        grant.seconds[unit.key] = seconds
        return seconds

    def _expected(self, total: float, largest: float) -> float:
        """The makespan, as long as such steps really take."""
        return self._makespan(total, largest) * self._times.slowness

    def _makespan(self, total: float, largest: float) -> float:
        """Until the last rank is done, as predicted from total and largest unit."""
        even = total / self._model.num_ranks
        return even if self._is_even else max(even, largest)

"""Who gets the encoder in a step, and for how long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

import msgspec
import pytest

from chiasm.config.engine import EncoderMode
from chiasm.engine.scheduler.encoder_policy import (
    DECODE_STEPS_PER_BUDGET,
    NUM_RESTS,
    WAVE,
    Claim,
    EncoderLimits,
    EncoderPolicy,
    Grant,
    Need,
    Wait,
)
from chiasm.schema.facts import EncoderRates
from chiasm.schema.media import PixelRef, Unit
from chiasm.vision.cost import CostModel, full_attention_flops
from tests.engine.mirror import SHAPE

_LINEAR = msgspec.structs.replace(SHAPE, full_attention_layers=tuple(range(SHAPE.num_layers)))
_RATES = EncoderRates(0.0, 1e-6, 0.0, 0.0, 0.0, 4, can_overlap=False, packs_units=False)


def model(num_ranks: int) -> CostModel:
    return CostModel(_LINEAR, _RATES, num_ranks)


def unit(key: str, num_tokens: int) -> Unit:
    return Unit(key, (2, 2 * num_tokens), num_tokens, PixelRef("", 0, 4 * num_tokens, 1))


NUM_STAGES = _LINEAR.num_stages
SECOND = model(1).work(unit("", 1)).seconds
"""Of a token's patches on one rank; nothing but linear work has a price here."""


def claim(name: str, *sizes: int, before: int = 1, seconds: float = 0.0) -> Claim:
    """A prompt that reads units of so many tokens, each with ``before`` tokens of text in front."""
    units = (
        Unit(f"{name}{index}", (2, 2 * size), size, PixelRef("", 0, 4 * size, 1)) for index, size in enumerate(sizes)
    )
    return Claim(name, [Need(unit, before, before + unit.num_tokens) for unit in units], seconds * SECOND)


@dataclass(frozen=True)
class Case:
    """A step, and the units that it is to encode.

    Attributes:
        budget: of a step in which a sequence decodes, in seconds of a token's patches; 0 if none decodes.
        room: tokens whose features can be pinned.
        keep: tokens whose features can be kept ahead.
    """

    expected: str
    claims: tuple[Claim, ...]
    ahead: tuple[Claim, ...] = ()
    budget: float = 0
    step_patches: int | None = None
    tokens: int = 1000
    patches: int = 1000
    room: int = 1000
    keep: int = 1000
    ready: frozenset[str] = field(default_factory=frozenset)
    mode: EncoderMode = "auto"
    num_ranks: int = 1


VIDEO, SMALL, LATER = claim("v", 4, 4, 4, 4), claim("s", 2), claim("t", 2, 2)

CASES = {
    "all that the chunks read, while nobody decodes": Case("v0 v1 v2 v3 s0 t0 t1", (VIDEO, SMALL, LATER)),
    "no more patches than memory allows": Case("v0 v1", (VIDEO,), patches=40),
    "one unit always fits": Case("v0", (VIDEO,), patches=8),
    "no unit behind the step's last token": Case("v0 v1", (VIDEO,), tokens=10),
    "a unit that is only begun": Case("v0 v1", (VIDEO,), tokens=7),
    "none whose own tokens don't begin": Case("v0", (VIDEO,), tokens=6),
    "a budget while somebody decodes": Case("v0 v1", (VIDEO,), budget=8),
    "a budget in patches": Case("v0", (VIDEO,), budget=1, step_patches=20),
    "one unit fits any budget": Case("v0", (VIDEO,), budget=1),
    "turns: the first, then who has had least": Case("v0 s0 t0", (VIDEO, SMALL, LATER), budget=9),
    "small ones get the half that is not the first's": Case("v0 s0 t0 v1 t1", (VIDEO, SMALL, LATER), budget=14),
    "who had much before waits": Case("v0 t0 t1", (VIDEO, claim("s", 2, seconds=9), LATER), budget=9),
    "a small one fits beside a large one that doesn't": Case("v0 s0", (claim("v", 4, 40), SMALL), budget=9),
    "others go along where ranks would wait": Case(
        "v0 s0 t0", (claim("v", 4), SMALL, LATER), budget=1, mode="data", num_ranks=2
    ),
    "a unit for each rank fits any budget": Case("v0 v1", (VIDEO,), budget=1, num_ranks=2),
    "but no larger one beside the first": Case("s0", (SMALL, VIDEO), budget=1, num_ranks=2),
    "nor one for each where all ranks share it": Case("v0", (VIDEO,), budget=1, num_ranks=2, mode="weights"),
    "nor for those that can't start yet": Case("s0", (SMALL,), (LATER,), budget=0.5, num_ranks=2),
    "two ranks do twice as much": Case("v0 v1 v2 v3", (VIDEO,), budget=8, num_ranks=2),
    "whole units take as long as the largest": Case("s0 t0 t1", (SMALL, LATER), budget=4, mode="data", num_ranks=2),
    "what is encoded costs nothing": Case("v2 v3", (VIDEO,), budget=8, ready=frozenset({"v0", "v1"})),
    "what is encoded has tokens": Case("", (VIDEO,), tokens=10, ready=frozenset({"v0", "v1"})),
    "no more than can be held until it is read": Case("v0 s0", (VIDEO, SMALL), room=7),
    "the same unit for two is one": Case("s0", (SMALL, claim("s", 2))),
    "nothing ahead while nobody decodes and ranks are even": Case("s0", (SMALL,), (LATER,)),
    "the rest of the budget ahead": Case("s0 t0 t1", (SMALL,), (LATER,), budget=8),
    "ahead no more than can be kept": Case("s0 t0", (SMALL,), (LATER,), budget=8, keep=2),
    "ahead while those that run need nothing": Case("t0 t1", (), (LATER,), budget=8),
    "ahead what fills ranks that would wait": Case("v0 t0 t1", (claim("v", 4),), (LATER,), mode="data", num_ranks=2),
    "ahead no more than that": Case("v0 t0 t1", (claim("v", 4),), (claim("t", 2, 2, 2),), mode="data", num_ranks=2),
}


@dataclass(frozen=True)
class Division:
    """A unit, and how far its pass has come after each step that encodes while somebody decodes.

    Attributes:
        stops: of ten stages.
        budget: of a step, as a part of the whole pass.
        full: layers with full attention.
        attention: seconds of all of it, where the rest takes 1.
        patches: the budget, as a part of the unit's, in place of a time.
        reading: of its tokens, in the same measure as the budget.
        slowness: how many times as long as predicted steps took lately.
    """

    stops: tuple[int, ...]
    budget: float = 1.0
    full: tuple[int, ...] = ()
    attention: float = 0.0
    patches: float | None = None
    slowness: float | None = None
    reading: float = 0.0


DIVISIONS = {
    "what fits is not divided": Division((10,)),
    "halves": Division((5, 10), budget=0.5),
    "parts that are alike rather than a small rest": Division((5, 10), budget=0.9),
    "three": Division((4, 7, 10), budget=0.4),
    "a part more where stages don't fill it": Division((2, 4, 6, 8, 10), budget=0.25),
    "a layer is never divided": Division(tuple(range(1, 11)), budget=1e-6),
    "patches": Division((5, 10), patches=0.5),
    "slow ranks": Division((5, 10), slowness=1.9),
    "fast ranks": Division((10,), budget=0.6, slowness=0.5),
    "layers with full attention take longer": Division((4, 7, 10), budget=0.4, full=(2, 5, 8), attention=1.0),
    "the last part is smaller by what reading it takes": Division((4, 8, 10), budget=0.4, reading=0.2),
    "what fits with reading is not divided": Division((10,), budget=1.1, reading=0.1),
    "what fits but for reading it is": Division((6, 10), budget=1.0, reading=0.1),
    "each of them alone": Division((2, 3, 5, 6, 8, 9, 10), budget=0.15, full=(2, 5, 8), attention=0.4),
}


def grant(policy: EncoderPolicy, case: Case, *, is_decoding: bool | None = None) -> Grant:
    def within(limit: int) -> object:
        return lambda units: sum(units.values()) <= limit

    return policy.grant(
        case.claims,
        case.ahead,
        num_tokens=case.tokens,
        is_decoding=bool(case.budget) if is_decoding is None else is_decoding,
        is_ready=case.ready.__contains__,
        can_pin=within(case.room),  # type: ignore[arg-type]
        can_keep=within(case.keep),  # type: ignore[arg-type]
    )


def policy_of(case: Case) -> EncoderPolicy:
    step_seconds = None if case.step_patches else case.budget * SECOND + 1e-9
    limits = EncoderLimits(case.patches, step_seconds, case.step_patches)
    return EncoderPolicy(limits, model(case.num_ranks), case.mode)


def under_way(one: Unit) -> Grant:
    return Grant(0, units={one.key: one}, num_read=one.num_tokens)


def observe(policy: EncoderPolicy, **changes: object) -> None:
    """A step that encoded something while a sequence decoded, unless ``changes`` say otherwise."""
    step = {
        "is_decoding": True,
        "encoded": (unit("any", 1),),
        "stages": (0, NUM_STAGES),
        "encoder_seconds": 0.0,
        "num_prompt_tokens": 0,
        "compute_seconds": 0.0,
    }
    policy.observe(**{**step, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", CASES)
def test_what_a_step_encodes(name: str) -> None:
    case = CASES[name]
    granted = grant(policy_of(case), case)
    assert sorted(granted.units) == sorted(case.expected.split())
    assert sum(granted.seconds.values()) == pytest.approx(sum(u.num_tokens for u in granted.units.values()) * SECOND)


@pytest.mark.parametrize("name", DIVISIONS)
def test_a_unit_over_the_budget_takes_several_steps(name: str) -> None:
    division = DIVISIONS[name]
    shape = msgspec.structs.replace(SHAPE, num_layers=9, full_attention_layers=division.full, window_blocks=0)
    work = CostModel(shape, _RATES, 1).work(unit("", 4))
    per_attention = division.attention * work.linear / max(1, full_attention_flops(shape, 16))
    own = CostModel(shape, msgspec.structs.replace(_RATES, seconds_per_attention_flop=per_attention), 1)
    budget = division.budget * own.work(unit("", 4)).seconds * (1 + 1e-9)
    step_patches = None if division.patches is None else round(16 * division.patches)
    policy = EncoderPolicy(EncoderLimits(1000, None if step_patches else budget, step_patches), own, "auto")
    encoded = unit("", 4)
    if division.slowness is not None:
        measured = division.slowness * own.work(encoded).seconds
        observe(policy, is_decoding=False, encoded=(encoded,), stages=(0, 10), encoder_seconds=measured)
    if division.reading:
        seconds = division.reading * own.work(encoded).seconds
        observe(policy, is_decoding=False, encoded=(), num_prompt_tokens=16, compute_seconds=4 * seconds)
    stops = [0]
    while stops[-1] < 10:
        stops.append(policy.go_on(under_way(encoded), stops[-1], is_decoding=True).stop)
    assert tuple(stops[1:]) == division.stops


def test_a_part_is_held_against_its_own_prediction() -> None:
    """A fifth of a pass in a fifth of its time is as fast as predicted."""
    case = Case("", (VIDEO,), budget=16)
    policy = policy_of(case)
    observe(policy, is_decoding=False, encoded=(unit("any", 4),), stages=(1, 2), encoder_seconds=0.8 * SECOND)
    assert len(grant(policy, case).units) == 4


def test_what_is_under_way_rests_between_its_steps_and_ends_once_nobody_decodes() -> None:
    policy = policy_of(Case("", (), budget=1))
    large = unit("large", 4)

    def stop(start: int, *, is_decoding: bool = True) -> int:
        return policy.go_on(under_way(large), start, is_decoding=is_decoding).stop

    first = stop(0)
    assert 0 < first < NUM_STAGES
    observe(policy, encoded=(large,), stages=(0, first))
    assert [stop(first, is_decoding=flag) for flag in (True, False)] == [first, NUM_STAGES]
    for _ in range(NUM_RESTS):
        observe(policy, encoded=())
    assert stop(first) > first


def test_what_exceeds_the_budget_is_granted_as_far_as_a_step_goes() -> None:
    case = CASES["one unit fits any budget"]
    assert 0 < grant(policy_of(case), case).stop < NUM_STAGES
    assert grant(policy_of(case), case, is_decoding=False).stop == NUM_STAGES


def test_a_budget_holds_less_where_steps_took_longer_than_predicted() -> None:
    case = Case("", (VIDEO,), budget=16)
    policy = policy_of(case)
    assert len(grant(policy, case).units) == 4
    for _ in range(3):
        observe(policy, is_decoding=False, encoded=(unit("any", 4),), encoder_seconds=8 * SECOND)
    assert len(grant(policy, case).units) == 2


def test_idle_ranks_are_filled_however_long_steps_take() -> None:
    case = CASES["ahead what fills ranks that would wait"]
    policy = policy_of(case)
    observe(policy, is_decoding=False, encoded=(unit("any", 4),), encoder_seconds=8 * SECOND)
    assert sorted(grant(policy, case).units) == sorted(case.expected.split())


def test_it_rests_after_a_step_with_images_while_somebody_decodes() -> None:
    case = Case("", (VIDEO,), budget=4)
    policy = policy_of(case)
    encodes = []
    for _ in range(3 * (NUM_RESTS + 1)):
        units = grant(policy, case).units
        encodes.append(bool(units))
        observe(policy, encoded=tuple(units.values()))
    assert encodes == ([True] + [False] * NUM_RESTS) * 3


def test_without_a_bound_it_neither_divides_nor_rests() -> None:
    case = Case("", (VIDEO,), budget=4)
    policy = EncoderPolicy(EncoderLimits(1_000_000, inf), model(1), "auto")
    for _ in range(3):
        granted = grant(policy, case)
        assert set(granted.units) == {need.unit.key for need in VIDEO.needs}
        assert granted.stop == model(1).shape.num_stages
        observe(policy, encoded=tuple(granted.units.values()))


def test_it_does_not_rest_once_nobody_decodes() -> None:
    case = Case("", (VIDEO,), budget=4)
    policy = policy_of(case)
    observe(policy)
    assert not grant(policy, case).units
    assert grant(policy, case, is_decoding=False).units
    observe(policy, is_decoding=False)
    assert grant(policy, case).units


def test_the_budget_follows_the_decode_steps_and_the_operator_goes_before_them() -> None:
    policy = EncoderPolicy(EncoderLimits(100), model(1), "auto")
    for seconds in (0.03, 0.05, 0.03, 9.0, 0.03):
        observe(policy, encoded=(), compute_seconds=seconds)
    assert policy.step_seconds == DECODE_STEPS_PER_BUDGET * 0.03
    assert EncoderPolicy(EncoderLimits(100, 0.5), model(1), "auto").step_seconds == 0.5


@dataclass(frozen=True)
class Wave:
    """A step in which nobody decodes, and whose encoding first tokens wait for.

    Attributes:
        waits: encoding that sequences have had, and that they were held back for.
        room: tokens whose features can be pinned.
    """

    expected: str
    claims: tuple[Claim, ...]
    waits: tuple[tuple[float, float], ...] = ()
    budget: float = 1.0
    room: int = 1000


BURST = tuple(claim(f"c{index}", 1) for index in range(30))


def names(claims: Sequence[Claim]) -> str:
    return " ".join(one.request_id for one in claims)


WAVES = {
    "nobody": Wave("", ()),
    "a video alone": Wave("v", (VIDEO,)),
    "those alike, until the first has waited long enough": Wave(names(BURST[: int(WAVE) + 1]), BURST),
    "all, where nobody watches": Wave(names(BURST), BURST, budget=inf),
    "small ones do not wait for a video": Wave("s", (claim("v", *[4] * 16), SMALL)),
    "one that waits does for those like it": Wave("s", (SMALL,), ((2, 0),)),
    "not for a video": Wave("s", (claim("v", *[4] * 16), SMALL), ((2, 0),)),
    "not longer than is fair": Wave("", (SMALL,), ((2, 2 * WAVE - 1),)),
    "whoever waits longest decides": Wave("", (SMALL,), ((9, 0), (2, 2 * WAVE))),
    "not if nothing was encoded for it": Wave("", (SMALL,), ((0, 0),)),
    "not for those that find no room": Wave("s", (VIDEO, SMALL), room=9),
}


@pytest.mark.parametrize("name", WAVES)
def test_whom_first_tokens_wait_for(name: str) -> None:
    wave = WAVES[name]
    policy = EncoderPolicy(EncoderLimits(1000, wave.budget), model(1), "auto")
    joined = policy.wave(
        wave.claims,
        [Wait(own * SECOND, waited * SECOND) for own, waited in wave.waits],
        is_ready=lambda key: False,
        can_pin=lambda units: sum(units.values()) <= wave.room,
    )
    assert names(joined) == wave.expected


def test_reading_is_in_the_budget() -> None:
    """A frame of four tokens takes four seconds to encode and two to read."""
    case = Case("", (VIDEO,), budget=16)
    policy = policy_of(case)
    assert (len(grant(policy, case).units), grant(policy, case).num_tokens) == (4, inf)
    observe(policy, is_decoding=False, encoded=(), num_prompt_tokens=16, compute_seconds=8 * SECOND)
    granted = grant(policy, case)
    assert len(granted.units) == 2
    assert granted.num_tokens == 16


def test_over_many_steps_the_first_has_half_and_the_others_share_the_rest() -> None:
    """Each step holds one unit, so turns have to be remembered from step to step."""
    policy = EncoderPolicy(EncoderLimits(1000, SECOND), model(1), "auto")
    had: Mapping[str, float] = {"v": 0.0, "s": 0.0, "t": 0.0}
    for _ in range(40):
        claims = tuple(claim(name, 2, seconds=seconds / SECOND) for name, seconds in had.items())
        granted = grant(policy, Case("", claims, budget=1))
        for key, seconds in granted.seconds.items():
            name = granted.asked_by[key]
            had = {**had, name: had[name] + seconds}
        observe(policy, is_decoding=False)
    total = sum(had.values())
    assert {name: round(seconds / total, 2) for name, seconds in had.items()} == {"v": 0.5, "s": 0.25, "t": 0.25}

"""Who waits for whom in a step in which nobody decodes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from chiasm.engine.cache.encoder_cache import EncoderCache
from chiasm.engine.scheduler.encoder_policy import WAVE, EncoderLimits, EncoderPolicy
from chiasm.engine.scheduler.sequence import Sequence
from chiasm.engine.scheduler.turn import Turn, claim_of, turn_of
from chiasm.vision.cost import CostModel
from tests.engine.mirror import RATES, ROW_BYTES, SHAPE, image, request

_MODEL = CostModel(SHAPE, RATES, 1)
_OWN = _MODEL.work(image(0, ("any", 2)).units[0]).seconds
_TOKENS = {"pic": (2,), "late": (2,), "twin": (2,), "video": (2,) * 40, "known": (2,), "text": ()}
"""Of each sequence's units; ``known`` is in the cache."""


@dataclass(frozen=True)
class Case:
    """Sequences in order of arrival, and what comes of it.

    Attributes:
        able: of those whose units are there: how long it was held back, in times of its own encoding.
        waits_until: of the able ones, by arrival.
        answered: those that have answered before, and given way.
    """

    names: str
    claims: str = ""
    left_out: str = ""
    able: dict[str, float] | None = None
    waits_until: int | None = None
    answered: str = ""
    is_awaited: bool = False


CASES = {
    "alone": Case("pic", "pic"),
    "together": Case("pic late", "pic late"),
    "a video alone": Case("video", "video"),
    "small ones first, and the video gets as much": Case("video pic late", "pic late", "video"),
    "who is ready waits": Case("pic late", "late", able={"pic": 0.0}),
    "not for a video": Case("pic video", "video", able={"pic": 0.0}, is_awaited=True),
    "not for ever": Case("pic late", "late", able={"pic": WAVE}, is_awaited=True),
    "not for those that came after the wave": Case("pic twin late", "twin", "late", able={"pic": 0.0}, waits_until=1),
    "nor if nobody else came": Case("pic late", "late", able={"pic": 0.0}, waits_until=0, is_awaited=True),
    "a text waits for none": Case("text pic", "pic", is_awaited=True),
    "nor does a picture that is known": Case("known pic", "known pic", is_awaited=True),
    "nor who has answered before": Case("pic late", "late", able={"pic": 0.0}, answered="pic", is_awaited=True),
}


def sequence_of(name: str, arrival: int, case: Case) -> Sequence:
    units = tuple((f"{name}{index}", size) for index, size in enumerate(_TOKENS[name]))
    made = Sequence(request(name, 4 + 2 * len(units), *([image(2, *units)] if units else [])), arrival=arrival)
    if name in (case.able or {}):
        made.num_computed_tokens = made.num_prompt_tokens - 1
        made.own_seconds, made.waits_until = _OWN, case.waits_until
        made.waited_seconds = (case.able or {})[name] * _OWN
    if name in case.answered:
        made.token_ids.append(1)
    return made


def turn(case: Case, *, has_followers: bool = False) -> tuple[Turn, EncoderCache]:
    cache = EncoderCache(ROW_BYTES, 1000 * ROW_BYTES, 1000 * ROW_BYTES)
    cache.keep("known0", 2)
    sequences = [sequence_of(name, place, case) for place, name in enumerate(case.names.split())]
    claims = [claim_of(one, one.num_computed_tokens, 1000, cache) for one in sequences]
    policy = EncoderPolicy(EncoderLimits(10000, 1.0), _MODEL, "auto")
    claims = [one for one in claims if one.needs]
    return turn_of(sequences, claims, (), policy, cache, has_followers=has_followers), cache


@pytest.mark.parametrize("name", CASES)
def test_whose_units_are_encoded_and_who_waits(name: str) -> None:
    case = CASES[name]
    own, cache = turn(case)
    assert " ".join(one.request_id for one in own.claims) == case.claims
    assert (own.left_out.request_id if own.left_out else "") == case.left_out
    assert own.is_awaited == case.is_awaited
    assert {one.request_id for one in own.waiting} == (set() if case.is_awaited else set(case.able or {}))
    assert not own.holds(lambda key: True), "all are through with this step"
    assert own.holds(cache.__contains__) == (not case.is_awaited), "somebody isn't"


def test_a_first_token_is_held_back_for_a_step_where_more_are_about_to_come() -> None:
    own, _ = turn(CASES["alone"], has_followers=True)
    assert own.holds(lambda key: True)


def test_nobody_is_held_back_for_followers_where_somebody_waits_for_none() -> None:
    own, _ = turn(CASES["a text waits for none"], has_followers=True)
    assert not own.holds(lambda key: True)

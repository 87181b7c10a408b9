"""Decoding beside videos, simulated: ranks that compute nothing and take as long as a model of them says."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import pytest

from chiasm.engine.scheduler.encoder_policy import WAVE
from chiasm.engine.scheduler.limits import SchedulerLimits
from chiasm.engine.scheduler.scheduler import Scheduler
from chiasm.schema.facts import EncoderRates
from chiasm.schema.media import MediaItem, PixelRef, Unit
from chiasm.schema.plan import StepPlan
from chiasm.schema.request import EngineRequest
from chiasm.schema.sampling import SamplingParams
from chiasm.vision.cost import linear_flops
from tests.engine.mirror import ROW_BYTES, SHAPE, MirrorRank, limits

DECODE_SECONDS = 0.01
TOKEN_SECONDS = 2e-5
TOWER = msgspec.structs.replace(SHAPE, num_layers=32, full_attention_layers=(7, 15, 23, 31))
FRAME_TOKENS = 64
FRAME_SECONDS = 0.02
"""Of one frame on one rank, roughly; the encoder's rates follow from it."""
_PATCHES = 4 * FRAME_TOKENS
BUDGET = 4 * DECODE_SECONDS
BUDGET_AT_FIRST = 0.1
"""Until decode steps have been measured."""

Arrival = tuple[float, EngineRequest]


def _limits(**changes: object) -> SchedulerLimits:
    per_flop = FRAME_SECONDS / linear_flops(TOWER, _PATCHES)
    rates = EncoderRates(0.0, per_flop, 1e-6 * per_flop, 0.0, 0.0, 4, can_overlap=False, packs_units=False)
    values: dict[str, object] = {
        "num_blocks": 20000,
        "max_model_len": 1 << 16,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "max_num_batched_patches": 16384,
        "encoder_cache_bytes": 4000 * ROW_BYTES,
        "encoder_kept_bytes": 4000 * ROW_BYTES,
        "encoder": TOWER,
        "encoder_rates": rates,
        "enable_prefix_caching": False,
        "encoder_mode": "auto",
        **changes,
    }
    return limits(**values)


def clip(name: str, num_frames: int, max_tokens: int = 1, *, size: int = 1) -> EngineRequest:
    """A request with a video, or with an image if it has one frame; frames are ``size`` times as large as usual."""
    tokens, patches = size * FRAME_TOKENS, size * _PATCHES
    units = tuple(
        Unit(f"{name}/{index}", (2, patches // 2), tokens, PixelRef("", 0, patches, 1)) for index in range(num_frames)
    )
    item = MediaItem("video", 4, num_frames * tokens, units)
    ids = tuple(range(item.end + 8))
    return EngineRequest(name, ids, (item,), SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True))


def chat(name: str, max_tokens: int) -> EngineRequest:
    return EngineRequest(
        name, tuple(range(16)), (), SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    )


@dataclass
class Simulation:
    """A scheduler with ranks and a clock.

    Attributes:
        arrivals: (second, request), in order of time.
        slowness: how much longer than predicted the encoder takes.
        token_seconds: of the language model.
        fixed_seconds: that a step takes longer if it reads prompts.
        token_times: by request, when its tokens came.
        num_steps: that it took.
        stalls: seconds of encoding in each step in which one of ``TALKS`` waited for its next token.
    """

    own: SchedulerLimits
    arrivals: list[Arrival]
    slowness: float = 1.0
    token_seconds: float = TOKEN_SECONDS
    fixed_seconds: float = 0.0
    clock: float = 0.0
    token_times: dict[str, list[float]] = field(default_factory=dict)
    stalls: list[float] = field(default_factory=list)
    num_steps: int = 0

    def run(self, until: float) -> Simulation:
        """Step until the clock shows ``until`` or nothing is left."""
        scheduler, rank, arrivals = Scheduler(self.own), MirrorRank(self.own), list(self.arrivals)
        while self.clock < until and (arrivals or scheduler.has_work):
            if not scheduler.has_work:
                self.clock = max(self.clock, arrivals[0][0])
            while arrivals and arrivals[0][0] <= self.clock:
                scheduler.add(arrivals.pop(0)[1])
            plan = scheduler.schedule()
            self.num_steps += 1
            assert plan.scheduled
            result = rank.execute(plan)
            compute = _compute_seconds(plan, self.token_seconds, self.fixed_seconds)
            encode = self.slowness * plan.vision.predicted_seconds if plan.vision else 0.0
            self.clock += compute + encode
            if encode and any(part.request_id in _NAMES for part in plan.scheduled):
                self.stalls.append(encode)
            scheduler.apply(plan, msgspec.structs.replace(result, compute_seconds=compute, encoder_makespan=encode))
            for delta in scheduler.take_deltas():
                self.token_times.setdefault(delta.request_id, []).extend([self.clock] * len(delta.token_ids))
        return self

    def gaps(self, *names: str) -> np.ndarray:
        """Inter-token latencies of these requests."""
        return np.concatenate([np.diff(self.token_times[name]) for name in names])

    def first_token(self, name: str) -> float:
        """Time to first token."""
        return self.token_times[name][0] - next(at for at, request in self.arrivals if request.request_id == name)


def _compute_seconds(plan: StepPlan, token_seconds: float = TOKEN_SECONDS, fixed_seconds: float = 0.0) -> float:
    seconds = DECODE_SECONDS + token_seconds * sum(part.num_new_tokens for part in plan.scheduled)
    return seconds + fixed_seconds * any(part.num_new_tokens > 1 for part in plan.scheduled)


TALKS = [(0.0, chat(f"talk{index}", 2000)) for index in range(4)]
_NAMES = [request.request_id for _, request in TALKS]


def test_decoding_does_not_stall_behind_videos() -> None:
    """However many: these are more than the encoder can do."""
    videos = [(0.5 + 0.2 * index, clip(f"video{index}", 32)) for index in range(30)]
    gaps = Simulation(_limits(), TALKS + videos).run(6.0).gaps(*_NAMES)
    quiet = Simulation(_limits(), TALKS).run(2.0).gaps(*_NAMES)
    assert np.percentile(gaps, 99) <= 1.5 * BUDGET
    assert gaps.max() <= 2 * BUDGET
    assert np.median(gaps) <= 1.1 * np.median(quiet)


@pytest.mark.parametrize("slowness", [1.0, 2.5])
@pytest.mark.parametrize("mode", ["auto", "data", "weights"])
def test_decoding_does_not_stall_behind_pictures_that_exceed_the_budget(mode: str, slowness: float) -> None:
    """Each takes as long as 4 to 20 budgets, and they are more than the encoder can do."""
    pictures = [(0.5 + 0.3 * index, clip(f"picture{index}", 1, size=16)) for index in range(20)]
    sim = Simulation(_limits(encoder_mode=mode), TALKS + pictures, slowness).run(8.0)
    first, *later = sim.stalls
    assert max(later) <= 1.01 * BUDGET
    assert first <= 1.01 * BUDGET * slowness, "what the prediction is off by is known after the first step"
    gaps = sim.gaps(*_NAMES)
    reading = 2048 * TOKEN_SECONDS  # the most that a step reads
    assert np.sort(gaps)[-len(TALKS) - 1] <= 1.01 * BUDGET + DECODE_SECONDS + reading
    assert np.median(gaps) <= 1.01 * (DECODE_SECONDS + len(TALKS) * TOKEN_SECONDS)
    assert len([name for name in sim.token_times if name.startswith("picture")]) >= 3


def test_a_picture_that_exceeds_the_budget_waits_for_little_beside_its_encoding() -> None:
    """For a step's budget of encoding there are three steps of decoding."""
    sim = Simulation(_limits(), [*TALKS, (1.0, clip("picture", 1, size=16))]).run(10.0)
    encoding = 16 * FRAME_SECONDS / 2
    num_steps = encoding / BUDGET + 2
    assert sim.first_token("picture") <= encoding + 3 * num_steps * DECODE_SECONDS + 17 * FRAME_TOKENS * TOKEN_SECONDS


def test_nothing_is_divided_once_nobody_decodes() -> None:
    """The talk ends while the picture is under way."""
    arrivals = [(0.0, chat("talk", 60)), (0.55, clip("picture", 1, size=32))]
    sim = Simulation(_limits(), arrivals).run(10.0)
    left = sim.token_times["picture"][0] - sim.token_times["talk"][-1]
    encoding = 32 * FRAME_SECONDS / 2
    assert 0.5 * encoding < left < encoding + 4 * DECODE_SECONDS + 2 * 32 * FRAME_TOKENS * TOKEN_SECONDS


def test_a_budget_of_the_operators_holds_too() -> None:
    videos = [(1.0 + 0.5 * index, clip(f"video{index}", 32)) for index in range(8)]
    longest = {}
    for budget in (0.02, 0.1):
        gaps = Simulation(_limits(encoder_step_seconds=budget), TALKS + videos).run(8.0).gaps(*_NAMES)
        longest[budget] = gaps.max()
    assert longest[0.02] <= 0.02 + 2 * DECODE_SECONDS
    assert longest[0.02] < longest[0.1] <= 0.1 + 3 * DECODE_SECONDS


def test_finished_frames_are_read_while_later_ones_wait() -> None:
    """A video costs little more than its encoding: no second pass over its tokens at the end."""
    sim = Simulation(_limits(), [*TALKS, (1.0, clip("video", 32))]).run(10.0)
    encoding = 32 * FRAME_SECONDS / 2
    num_steps = encoding / BUDGET * 3
    assert sim.first_token("video") <= 1.3 * (
        encoding + num_steps * DECODE_SECONDS + 32 * FRAME_TOKENS * TOKEN_SECONDS
    )


def test_a_long_video_does_not_starve_small_requests() -> None:
    small = [(1.2 + 0.1 * index, clip(f"small{index}", 1)) for index in range(10)]
    alone = Simulation(_limits(), [*TALKS, small[0]]).run(5.0).first_token("small0")
    sim = Simulation(_limits(), [*TALKS, (1.0, clip("video", 64)), *small]).run(10.0)
    assert max(sim.first_token(request.request_id) for _, request in small) <= 3 * alone + 2 * BUDGET


def test_a_stream_of_small_requests_does_not_starve_a_long_video() -> None:
    """Which alone would keep the encoder more than busy."""
    alone = Simulation(_limits(), [*TALKS, (1.0, clip("video", 64))]).run(10.0).first_token("video")
    small = [(1.0 + 0.02 * index, clip(f"small{index}", 1)) for index in range(1, 400)]
    sim = Simulation(_limits(), [*TALKS, (1.0, clip("video", 64)), *small]).run(9.0)
    assert sim.first_token("video") <= 2.5 * alone


def test_those_who_cannot_start_yet_are_encoded_in_what_is_left_of_budgets() -> None:
    """All places are taken by sequences that decode: the picture is ready when one of them ends."""
    own = _limits(max_num_seqs=4)
    ends = [(0.0, chat(f"talk{index}", 200)) for index in range(4)]
    sim = Simulation(own, [*ends, (0.5, clip("waits", 1))]).run(10.0)
    last = max(times[-1] for name, times in sim.token_times.items() if name != "waits")
    assert sim.token_times["waits"][0] - last <= 2 * DECODE_SECONDS


def burst(
    num: int, num_frames: int = 1, *, size: int = 4, every: float = 0.002, max_tokens: int = 30
) -> list[Arrival]:
    """Requests that come one by one while the next are being prepared."""
    own = [clip(f"burst{index}", 1, max_tokens, size=size) for index in range(num)]
    return [
        (every * index, msgspec.structs.replace(request, num_followers=min(2, num - 1 - index)))
        for index, request in enumerate(own)
    ]


def test_pictures_that_come_together_are_answered_together() -> None:
    """Encoded at full speed, then decoded side by side."""
    arrivals = burst(8)
    sim = Simulation(_limits(), arrivals).run(60.0)
    first = [sim.token_times[request.request_id][0] for _, request in arrivals]
    encoding, reading = 8 * 4 * FRAME_SECONDS / 2, 8 * 5 * FRAME_TOKENS * TOKEN_SECONDS
    assert max(first) <= 1.1 * encoding + reading + 4 * DECODE_SECONDS
    assert len(set(first)) == 1
    assert sim.gaps(*(request.request_id for _, request in arrivals)).max() <= DECODE_SECONDS + 9 * TOKEN_SECONDS


def test_a_picture_alone_is_read_and_answered_in_one_step() -> None:
    sim = Simulation(_limits(), [(0.0, clip("picture", 1))]).run(5.0)
    assert sim.num_steps == 1


def test_a_text_waits_for_no_more_than_the_step_that_it_comes_in() -> None:
    talk = [(0.001, chat("talk", 5))]
    sim = Simulation(_limits(), sorted([*burst(8), *talk], key=lambda arrival: arrival[0])).run(60.0)
    first_step = 4 * FRAME_SECONDS / 2 + 6 * FRAME_TOKENS * TOKEN_SECONDS + DECODE_SECONDS
    assert sim.first_token("talk") <= first_step + 2 * (BUDGET_AT_FIRST + DECODE_SECONDS)


def test_a_small_picture_does_not_wait_for_a_video_that_comes_with_it() -> None:
    alone = Simulation(_limits(), [(0.0, clip("small", 1))]).run(5.0).first_token("small")
    sim = Simulation(_limits(), [(0.0, clip("video", 64)), (0.0, clip("small", 1))]).run(20.0)
    assert sim.first_token("small") <= 2 * alone


@pytest.mark.parametrize("every", [0.0, 0.002, 0.02, 0.04])
def test_a_first_token_is_not_held_back_for_long(every: float) -> None:
    """More pictures come than the encoder can do."""
    sim = Simulation(_limits(), burst(100, every=every, size=2, max_tokens=1)).run(20.0)
    alone = 2 * FRAME_SECONDS / 2 + DECODE_SECONDS + 3 * FRAME_TOKENS * TOKEN_SECONDS
    assert sim.first_token("burst0") <= (WAVE + 2) * alone


def test_a_first_token_waits_for_nobody_who_comes_after_its_wave() -> None:
    """One picture is ready when the next comes; what comes in the meantime is no part of its wave."""
    late = [(0.05 + 0.03 * index, clip(f"late{index}", 1, 1, size=4)) for index in range(40)]
    sim = Simulation(_limits(), [*burst(2, max_tokens=1), *late]).run(20.0)
    alone = 4 * FRAME_SECONDS / 2 + DECODE_SECONDS + 5 * FRAME_TOKENS * TOKEN_SECONDS
    assert sim.first_token("burst0") <= 3 * alone


def test_two_answers_to_each_picture_are_in_the_same_wave() -> None:
    pictures = burst(4)
    twins = [(at, msgspec.structs.replace(one, request_id=f"{one.request_id}-1")) for at, one in pictures]
    sim = Simulation(_limits(), sorted([*pictures, *twins], key=lambda arrival: arrival[0])).run(20.0)
    assert len({times[0] for times in sim.token_times.values()}) == 1


def closed_loop(num_clients: int, max_tokens: int) -> float:
    """First token of a video, where clients ask about small pictures again as soon as they have their answers."""
    own = _limits(encoder_cache_bytes=40000 * ROW_BYTES)
    scheduler, rank, clock, count = Scheduler(own), MirrorRank(own), 0.0, num_clients
    for index in range(num_clients):
        scheduler.add(clip(f"small{index}", 1, max_tokens))
    scheduler.add(clip("video", 64))
    while clock < 60:
        plan = scheduler.schedule()
        compute, encode = _compute_seconds(plan), plan.vision.predicted_seconds if plan.vision else 0.0
        clock += compute + encode
        result = msgspec.structs.replace(rank.execute(plan), compute_seconds=compute, encoder_makespan=encode)
        scheduler.apply(plan, result)
        for delta in scheduler.take_deltas():
            if delta.request_id == "video":
                return clock
            if delta.finish_reason:
                scheduler.add(clip(f"small{count}", 1, max_tokens))
                count += 1
    return clock


@pytest.mark.parametrize("max_tokens", [1, 5])
@pytest.mark.parametrize("num_clients", [1, 8])
def test_small_pictures_that_come_again_and_again_do_not_starve_a_video(num_clients: int, max_tokens: int) -> None:
    alone = Simulation(_limits(), [(0.0, clip("video", 64))]).run(10.0).first_token("video")
    assert closed_loop(num_clients, max_tokens) <= 4 * alone


def test_those_who_wait_behind_do_not_delay_those_who_run() -> None:
    """Reading tokens takes long here; what is encoded ahead is not read yet."""
    first = {}
    for num_behind in (0, 6):
        ends = [(0.0, chat(f"talk{index}", 100)) for index in range(3)]
        pictures = [(0.3, clip(f"picture{index}", 1)) for index in range(1 + num_behind)]
        sim = Simulation(_limits(max_num_seqs=4), [*ends, *pictures], token_seconds=2e-4).run(10.0)
        first[num_behind] = sim.first_token("picture0")
    assert first[6] <= 1.1 * first[0]


@pytest.mark.parametrize("fixed", [0.0, 0.02, 0.045, 0.06])
def test_a_long_text_is_read_in_reasonable_time_whatever_a_step_costs(fixed: float) -> None:
    """8,000 tokens beside answers; with chunks of a few tokens each it would take 500 times the fixed time."""
    text = EngineRequest("text", tuple(range(8000)), (), SamplingParams(max_tokens=1, temperature=0))
    own = _limits(encoder_step_seconds=0.04)
    sim = Simulation(own, [*TALKS, (0.5, text)], fixed_seconds=fixed).run(20.0)
    assert sim.first_token("text") <= 2 * 8000 * TOKEN_SECONDS + 20 * (fixed + DECODE_SECONDS)
    assert sim.gaps(*_NAMES).max() <= 2048 * TOKEN_SECONDS + fixed + 2 * DECODE_SECONDS


def test_the_default_budget_follows_steps_that_read_as_well() -> None:
    """Short prompts come in every step, so that none does nothing but decode."""
    texts = [(0.005 * index, chat(f"text{index}", 1)) for index in range(800)]
    videos = [(1.0 + 0.2 * index, clip(f"video{index}", 16)) for index in range(5)]
    sim = Simulation(_limits(), sorted([*TALKS, *texts, *videos], key=lambda arrival: arrival[0])).run(4.0)
    assert np.percentile(sim.gaps(*_NAMES), 99) <= 1.5 * BUDGET

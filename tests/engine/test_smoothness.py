"""Decoding beside videos, simulated: ranks that compute nothing and take as long as a model of them says."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from chiasm.engine.scheduler.scheduler import Scheduler, SchedulerLimits
from chiasm.schema.facts import EncoderRates
from chiasm.schema.media import MediaItem, PixelRef, Unit
from chiasm.schema.plan import StepPlan
from chiasm.schema.request import EngineRequest
from chiasm.schema.sampling import SamplingParams
from chiasm.vision.cost import linear_flops
from tests.engine.mirror import ROW_BYTES, SHAPE, MirrorRank, limits

DECODE_SECONDS = 0.01
TOKEN_SECONDS = 2e-5
FRAME_TOKENS = 64
FRAME_SECONDS = 0.02
"""Of one frame on one rank, roughly; the encoder's rates follow from it."""
_PATCHES = 4 * FRAME_TOKENS
BUDGET = 4 * DECODE_SECONDS


def _limits(**changes: object) -> SchedulerLimits:
    per_flop = FRAME_SECONDS / linear_flops(SHAPE, _PATCHES)
    rates = EncoderRates(0.0, per_flop, 1e-6 * per_flop, 0.0, 0.0, 4, can_overlap=False, packs_units=False)
    values: dict[str, object] = {
        "num_blocks": 20000,
        "max_model_len": 1 << 16,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 2048,
        "max_num_batched_patches": 16384,
        "encoder_cache_bytes": 4000 * ROW_BYTES,
        "encoder_kept_bytes": 4000 * ROW_BYTES,
        "encoder_rates": rates,
        "enable_prefix_caching": False,
        "encoder_mode": "auto",
        **changes,
    }
    return limits(**values)


def _unit(key: str) -> Unit:
    return Unit(key, (2, _PATCHES // 2), FRAME_TOKENS, PixelRef("", 0, _PATCHES, 1))


def clip(name: str, num_frames: int, max_tokens: int = 1) -> EngineRequest:
    """A request with a video, or with an image if it has one frame."""
    units = tuple(_unit(f"{name}/{index}") for index in range(num_frames))
    item = MediaItem("video", 4, num_frames * FRAME_TOKENS, units)
    tokens = tuple(range(item.end + 8))
    return EngineRequest(name, tokens, (item,), SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True))


def chat(name: str, max_tokens: int) -> EngineRequest:
    return EngineRequest(
        name, tuple(range(16)), (), SamplingParams(max_tokens=max_tokens, temperature=0, ignore_eos=True)
    )


@dataclass
class Simulation:
    """A scheduler with ranks and a clock.

    Attributes:
        arrivals: (second, request), in order of time.
        token_times: by request, when its tokens came.
    """

    own: SchedulerLimits
    arrivals: list[tuple[float, EngineRequest]]
    clock: float = 0.0
    token_times: dict[str, list[float]] = field(default_factory=dict)

    def run(self, until: float) -> Simulation:
        """Step until the clock shows ``until`` or nothing is left."""
        scheduler, rank, arrivals = Scheduler(self.own), MirrorRank(self.own), list(self.arrivals)
        while self.clock < until and (arrivals or scheduler.has_work):
            if not scheduler.has_work:
                self.clock = max(self.clock, arrivals[0][0])
            while arrivals and arrivals[0][0] <= self.clock:
                scheduler.add(arrivals.pop(0)[1])
            plan = scheduler.schedule()
            assert plan.scheduled
            result = rank.execute(plan)
            compute, encode = _compute_seconds(plan), plan.vision.predicted_seconds if plan.vision else 0.0
            self.clock += compute + encode
            scheduler.apply(
                plan, type(result)(result.step, result.sampled, result.failed_units, compute_seconds=compute)
            )
            for delta in scheduler.take_deltas():
                self.token_times.setdefault(delta.request_id, []).extend([self.clock] * len(delta.token_ids))
        return self

    def gaps(self, *names: str) -> np.ndarray:
        """Inter-token latencies of these requests."""
        return np.concatenate([np.diff(self.token_times[name]) for name in names])

    def first_token(self, name: str) -> float:
        """Time to first token."""
        return self.token_times[name][0] - next(at for at, request in self.arrivals if request.request_id == name)


def _compute_seconds(plan: StepPlan) -> float:
    return DECODE_SECONDS + TOKEN_SECONDS * sum(part.num_new_tokens for part in plan.scheduled)


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

"""A frame is encoded once, whoever shows it and how often, as long as the encoder cache has room for it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from chiasm.engine.scheduler.limits import SchedulerLimits
from chiasm.engine.scheduler.scheduler import Scheduler
from chiasm.schema.media import MediaItem
from chiasm.schema.request import EngineRequest
from tests.engine.mirror import ROW_BYTES, MirrorRank, answer_of, image, limits, request, run_until_idle

ROOMY = {"num_blocks": 64, "max_num_batched_tokens": 48, "max_num_batched_patches": 1000}


def clip(offset: int, names: str, num_tokens: int = 2) -> MediaItem:
    """A clip with one frame for each letter."""
    return image(offset, *((name, num_tokens) for name in names))


def encoded(own: SchedulerLimits, *requests: EngineRequest, together: bool = True) -> dict[str, int]:
    """How often each frame was encoded; every request must have got its own answer."""
    scheduler, rank = Scheduler(own), MirrorRank(own)
    deltas = {}
    for index, one in enumerate(requests):
        scheduler.add(one)
        if not together or index == len(requests) - 1:
            deltas |= run_until_idle(scheduler, rank)
    for one in requests:
        assert [token for delta in deltas[one.request_id] for token in delta.token_ids] == answer_of(one)
    assert scheduler.stats().units_encoded == sum(rank.num_encoded.values())
    return dict(rank.num_encoded)


def test_a_frame_twice_in_one_clip_and_in_two_items_of_a_request() -> None:
    one = request("a", 16, clip(0, "fgf"), clip(8, "gh"))
    assert encoded(limits(**ROOMY), one) == {"f": 1, "g": 1, "h": 1}


def test_overlapping_clips_of_two_requests_in_one_step_and_one_after_the_other() -> None:
    requests = [request("a", 10, clip(1, "fgh")), request("b", 10, clip(2, "ghi"), first_token=300)]
    for together in (True, False):
        assert encoded(limits(**ROOMY), *requests, together=together) == {"f": 1, "g": 1, "h": 1, "i": 1}


def test_a_frame_that_a_small_budget_puts_off_is_not_encoded_for_each_who_waits() -> None:
    """One frame a step: those whose frame is planned for somebody else in this step read it in this step."""
    own = limits(**{**ROOMY, "max_num_batched_patches": 8})
    requests = [request(name, 8, clip(1, "fgh"), first_token=100 * index) for index, name in enumerate("abc")]
    assert encoded(own, *requests) == {"f": 1, "g": 1, "h": 1}


def test_a_frame_is_encoded_again_only_after_it_had_to_make_room() -> None:
    own = limits(**ROOMY, encoder_cache_bytes=4 * ROW_BYTES, encoder_kept_bytes=4 * ROW_BYTES)
    names = ["f", "g", "h", "g", "f"]
    requests = [request(f"r{i}", 4, clip(1, name), first_token=100 * i) for i, name in enumerate(names)]
    assert encoded(own, *requests, together=False) == {"f": 2, "g": 1, "h": 1}


def test_if_nothing_may_be_kept_a_frame_goes_with_its_last_reader() -> None:
    own = limits(**ROOMY, encoder_kept_bytes=0)
    requests = [request(f"r{i}", 4, clip(1, "f"), max_tokens=3, first_token=100 * i) for i in range(3)]
    assert encoded(own, *requests) == {"f": 1}, "three readers in one step"
    assert encoded(own, *requests, together=False) == {"f": 3}
    scheduler, rank = Scheduler(own), MirrorRank(own)
    scheduler.add(requests[0])
    for held in (["f"], [], []):
        plan = scheduler.schedule()
        scheduler.apply(plan, rank.execute(plan))
        assert list(rank.features) == held


_CLIPS = st.lists(st.text("uvwxyz", min_size=1, max_size=4), min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(
    described=st.lists(st.tuples(_CLIPS, st.integers(0, 3)), min_size=1, max_size=6),
    tokens=st.integers(4, 24),
    patches=st.sampled_from([4, 8, 64]),
    num_blocks=st.integers(12, 30),
    caches=st.booleans(),
)
def test_with_room_for_all_every_frame_is_encoded_once_whatever_comes(
    described: list[tuple[list[str], int]], tokens: int, patches: int, num_blocks: int, caches: bool
) -> None:
    """Chunks that end within a frame, requests that give way to others, prefixes found or not."""
    own = limits(
        num_blocks=num_blocks,
        max_num_batched_tokens=tokens,
        max_num_batched_patches=patches,
        enable_prefix_caching=caches,
        encoder_cache_bytes=100 * ROW_BYTES,
        encoder_kept_bytes=100 * ROW_BYTES,
    )
    scheduler, rank = Scheduler(own), MirrorRank(own)
    shown: set[str] = set()
    for index, (clips, delay) in enumerate(described):
        items, offset = [], 1
        for names in clips:
            items.append(clip(offset, names))
            offset = items[-1].end + 1
            shown |= set(names)
        scheduler.add(request(f"r{index}", offset, *items, first_token=100 * index))
        for _ in range(delay):
            if scheduler.has_work:
                plan = scheduler.schedule()
                scheduler.apply(plan, rank.execute(plan))
    run_until_idle(scheduler, rank)
    assert dict(rank.num_encoded) == dict.fromkeys(shown, 1)

"""Units that text attends to: they are there from a sequence's first token to the last one that sees them."""

from __future__ import annotations

import msgspec
import pytest

from chiasm.config.engine import EngineConfig
from chiasm.engine.core.capacity import decide_capacity
from chiasm.engine.frontend.admission import check_seen_media
from chiasm.engine.scheduler.encoder_policy import NUM_RESTS
from chiasm.engine.scheduler.scheduler import Scheduler
from chiasm.errors import UserError
from chiasm.schema.media import CanvasProcessorSpec, CanvasShape
from tests.engine.mirror import ROW_BYTES, MirrorRank, answer_of, limits, request, run_until_idle, seen_images
from tests.engine.test_capacity import info
from tests.engine.test_scheduler import started, step, tokens_of


def held(scheduler: Scheduler) -> tuple[int, int]:
    stats = scheduler.stats()
    return stats.kv_blocks_used, stats.encoder_bytes_used


def test_all_images_are_encoded_before_the_first_token_and_over_several_steps() -> None:
    images = seen_images((2, "a", 4), (6, "b", 4), (9, "c", 4))
    scheduler, rank = started(limits(), request("one", 12, *images))
    plan = step(scheduler, rank)
    assert ([unit.key for unit in plan.vision.plan.units], plan.started, plan.scheduled) == (["a", "b"], (), ())
    plan = step(scheduler, rank)
    assert [unit.key for unit in plan.vision.plan.units] == ["c"], "32 patches are two images"
    assert tokens_of(plan) == {"one": 12}


def test_others_go_on_while_images_are_encoded_ahead() -> None:
    scheduler, rank = started(limits(), request("text", 3, max_tokens=9))
    step(scheduler, rank)
    scheduler.add(request("one", 8, *seen_images((0, "a", 5), (4, "b", 5)), first_token=300))
    steps = [tokens_of(step(scheduler, rank)) for _ in range(NUM_RESTS + 3)]
    assert steps == [{"text": 1}] * (NUM_RESTS + 1) + [{"text": 1, "one": 8}, {"text": 1, "one": 1}]


def test_an_image_is_kept_as_long_as_a_token_sees_it() -> None:
    images = seen_images((1, "a", 4), (5, "b", 4))
    scheduler, rank = started(
        limits(max_num_batched_tokens=4, encoder_kept_bytes=0), request("one", 8, *images, max_tokens=4)
    )
    assert tokens_of(step(scheduler, rank)) == {"one": 4}
    assert held(scheduler) == (1, 8 * ROW_BYTES)
    step(scheduler, rank)
    assert held(scheduler) == (2, 4 * ROW_BYTES), "b has taken the place of a"
    step(scheduler, rank)
    assert set(rank.features) == {"b"}
    run_until_idle(scheduler, rank)
    assert held(scheduler) == (0, 0)


def test_the_same_image_is_kept_once_for_all_who_see_it() -> None:
    scheduler, rank = started(
        limits(),
        *(
            request(name, 4, *seen_images((1, "same", 12)), first_token=100 * place)
            for place, name in enumerate("ab")
        ),
    )
    step(scheduler, rank)
    assert scheduler.stats().num_running == 2
    assert scheduler.stats().encoder_bytes_used == 12 * ROW_BYTES
    run_until_idle(scheduler, rank)
    assert rank.num_encoded["same"] == 1


def test_who_finds_no_room_waits_and_text_passes_nobody_by() -> None:
    """16 rows: the second sequence's images have room when the first has ended."""
    first, second = (
        request(name, 4, *seen_images((1, f"{name}1", 5), (2, f"{name}2", 5)), first_token=300) for name in "ab"
    )
    scheduler, rank = started(limits(max_num_batched_patches=64), first, second)
    plans = []
    while scheduler.has_work:
        plans.append(step(scheduler, rank))
    order = [part.request_id for plan in plans for part in plan.scheduled]
    assert order == ["a"] * 3 + ["b"] * 3


def test_a_prefix_is_shared_only_with_the_same_images_and_encodes_what_it_still_sees() -> None:
    """What is before the first image depends on all images, so they name the first block."""
    images = seen_images((2, "a", 4), (6, "b", 4))
    own = limits(encoder_kept_bytes=0, max_num_batched_patches=64)
    scheduler, rank = started(own, request("one", 12, *images))
    scheduler.add(request("text", 3, first_token=700))
    run_until_idle(scheduler, rank)
    assert rank.features == {}
    scheduler.add(request("again", 12, *images))
    plan = step(scheduler, rank)
    assert tokens_of(plan) == {"again": 4}
    assert [unit.key for unit in plan.vision.plan.units] == ["b"], "a is behind the prefix"
    run_until_idle(scheduler, rank)
    for changed in (images[:1], seen_images((2, "a", 4), (6, "other", 4)), ()):
        scheduler.add(request("changed", 12, *changed))
        while not (plan := step(scheduler, rank)).scheduled:
            pass
        assert tokens_of(plan) == {"changed": 12}
        run_until_idle(scheduler, rank)


def test_preemption_lets_go_of_images_and_the_answer_is_the_same() -> None:
    own = limits(num_blocks=5, max_model_len=20, max_num_batched_patches=64)
    requests = [
        request(name, 7, *seen_images((1, name, 8)), max_tokens=9, first_token=first)
        for name, first in (("a", 100), ("b", 300))
    ]
    scheduler, rank = started(own, *requests)
    deltas = run_until_idle(scheduler, rank)
    assert scheduler.stats().num_preemptions > 0
    for one in requests:
        assert [token for delta in deltas[one.request_id] for token in delta.token_ids] == answer_of(one)
    assert held(scheduler) == (0, 0)


def test_an_abort_frees_images_of_who_runs_and_of_who_waits_for_more() -> None:
    scheduler, rank = started(
        limits(),
        request("runs", 6, *seen_images((1, "a", 4))),
        request("waits", 6, *seen_images((1, "b", 4), (2, "c", 4), (3, "d", 4)), first_token=300),
    )
    plan = step(scheduler, rank)
    assert {unit.key for unit in plan.vision.plan.units} == {"a", "b"}
    assert held(scheduler)[1] == 8 * ROW_BYTES
    scheduler.abort(["runs", "waits"])
    assert held(scheduler) == (0, 0)
    assert not scheduler.has_work
    scheduler.add(request("next", 6, *seen_images((1, "e", 16))))
    assert run_until_idle(scheduler, rank)["next"][-1].finish_reason == "length"


def test_an_image_that_fails_ahead_ends_its_sequence_and_no_other() -> None:
    own = limits()
    scheduler = Scheduler(own)
    rank = MirrorRank(own, ["broken"])
    scheduler.add(request("bad", 6, *seen_images((1, "broken", 8), (2, "fine", 8))))
    scheduler.add(request("good", 6, *seen_images((1, "fine", 8)), first_token=300))
    deltas = run_until_idle(scheduler, rank)
    assert [(delta.finish_reason, delta.error) for delta in deltas["bad"]] == [("error", "broken")]
    assert deltas["good"][-1].finish_reason == "length"
    assert held(scheduler) == (0, 0)


def test_hits_are_counted_once_for_a_sequence() -> None:
    scheduler, rank = started(
        limits(max_num_batched_tokens=4), request("one", 9, *seen_images((1, "a", 4)), max_tokens=5)
    )
    run_until_idle(scheduler, rank)
    stats = scheduler.stats()
    assert (stats.encoder_queries, stats.encoder_hits) == (1, 0)


def test_images_that_can_not_all_be_kept_are_refused_with_both_numbers() -> None:
    images = seen_images((0, "a", 5), (1, "b", 6), (2, "a", 5))
    check_seen_media(images, 11, "messages")
    check_seen_media(images, None, "messages")
    with pytest.raises(UserError, match=r"2 different images have 11 rows .* room for 10") as caught:
        check_seen_media(images, 10, "messages")
    assert caught.value.param == "messages"


_CANVAS = CanvasProcessorSpec(14, 1, 1, CanvasShape(3, 4))
_UNIT_BYTES = _CANVAS.canvas.unit_rows * 32


def _capacity(cache_bytes: int, own_bytes: int = 0, **settings: object) -> tuple[int, int]:
    """Blocks, and bytes for images, where a unit takes ``_UNIT_BYTES`` and a block 10."""
    facts = msgspec.structs.replace(info(0).facts, num_cross_layers=2, processor=_CANVAS)
    assert facts.max_unit_tokens == _CANVAS.canvas.unit_rows == 64
    config = EngineConfig(model="m", mm_encoder_cache_gb=own_bytes / 2**30, **settings)  # type: ignore[arg-type]
    capacity = decide_capacity(
        config, [msgspec.structs.replace(info(cache_bytes, encoder_bytes=own_bytes), facts=facts)]
    )
    return capacity.num_blocks, capacity.encoder_cache_bytes


def test_images_share_the_memory_of_the_cache_with_text() -> None:
    """Half of it, but no more than an image for each sequence, and never less than one image."""
    assert _capacity(10 * _UNIT_BYTES) == (5 * _UNIT_BYTES // 10, 5 * _UNIT_BYTES)
    assert _capacity(10 * _UNIT_BYTES, max_num_seqs=2, max_model_len=32) == (4, 2 * _UNIT_BYTES)
    assert _capacity(_UNIT_BYTES)[1] == _UNIT_BYTES


def test_the_cache_of_text_lends_only_what_the_encoders_own_lacks() -> None:
    assert _capacity(10 * _UNIT_BYTES, 2 * _UNIT_BYTES) == (7 * _UNIT_BYTES // 10, 5 * _UNIT_BYTES)
    assert _capacity(10 * _UNIT_BYTES, 8 * _UNIT_BYTES) == (10 * _UNIT_BYTES // 10, 8 * _UNIT_BYTES)

"""The scheduler's policy, and what must hold whatever it decides."""

from __future__ import annotations

from itertools import accumulate, pairwise

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from chiasm.engine.scheduler.encoder_policy import NUM_RESTS
from chiasm.engine.scheduler.limits import SchedulerLimits
from chiasm.engine.scheduler.scheduler import Scheduler
from chiasm.schema.plan import StepPlan
from chiasm.schema.request import EngineRequest
from chiasm.schema.sampling import SamplingParams
from tests.engine.mirror import (
    ROW_BYTES,
    SHAPE,
    MirrorRank,
    answer_of,
    image,
    limits,
    request,
    run_until_idle,
    score_of,
    seen_images,
)


def started(own: SchedulerLimits, *requests: EngineRequest) -> tuple[Scheduler, MirrorRank]:
    scheduler = Scheduler(own)
    for one in requests:
        scheduler.add(one)
    return scheduler, MirrorRank(own)


def step(scheduler: Scheduler, rank: MirrorRank) -> StepPlan:
    plan = scheduler.schedule()
    scheduler.apply(plan, rank.execute(plan))
    return plan


def tokens_of(plan: StepPlan) -> dict[str, int]:
    return {part.request_id: part.num_new_tokens for part in plan.scheduled}


def test_a_long_prompt_is_computed_in_chunks_and_others_decode_beside_it() -> None:
    scheduler, rank = started(limits(), request("a", 3), request("b", 20))
    assert tokens_of(step(scheduler, rank)) == {"a": 3, "b": 9}
    assert tokens_of(step(scheduler, rank)) == {"a": 1, "b": 11}
    assert tokens_of(step(scheduler, rank)) == {"a": 1, "b": 1}


def test_no_more_sequences_run_than_allowed() -> None:
    scheduler, rank = started(limits(max_num_seqs=2), *(request(name, 2) for name in "abc"))
    assert set(tokens_of(step(scheduler, rank))) == {"a", "b"}


def test_a_chunk_ends_before_the_first_unit_over_the_budget() -> None:
    clip = image(1, ("f0", 4), ("f1", 4), ("f2", 4))
    scheduler, rank = started(limits(max_num_batched_tokens=32), request("a", 16, clip))
    plan = step(scheduler, rank)
    assert [unit.key for unit in plan.vision.plan.units] == ["f0", "f1"], "32 patches"
    assert tokens_of(plan) == {"a": 9}, "one token of text and two frames"
    assert tokens_of(step(scheduler, rank)) == {"a": 7}


def test_a_unit_larger_than_the_budget_is_encoded_alone() -> None:
    scheduler, rank = started(limits(), request("a", 20, image(0, ("huge", 12), ("next", 1))))
    plan = step(scheduler, rank)
    assert [unit.key for unit in plan.vision.plan.units] == ["huge"]


def test_only_units_that_the_chunk_needs_are_encoded() -> None:
    scheduler, rank = started(limits(max_num_batched_tokens=4), request("a", 20, image(2, ("f0", 4), ("f1", 4))))
    assert [unit.key for unit in step(scheduler, rank).vision.plan.units] == ["f0"]


def test_the_same_unit_in_two_requests_and_twice_in_one_is_encoded_once() -> None:
    twice = (image(0, ("same", 4)), image(5, ("same", 4)))
    scheduler, rank = started(limits(max_num_batched_tokens=32), request("a", 10, *twice), request("b", 6, twice[0]))
    assert [unit.key for unit in step(scheduler, rank).vision.plan.units] == ["same"]
    run_until_idle(scheduler, rank)
    assert scheduler.stats().units_encoded == 1


def test_a_shared_prefix_is_computed_once() -> None:
    scheduler, rank = started(limits(max_num_batched_tokens=32), request("a", 13))
    run_until_idle(scheduler, rank)
    scheduler.add(request("b", 13))
    plan = step(scheduler, rank)
    assert tokens_of(plan) == {"b": 1}, "12 tokens are three full blocks"
    deltas = run_until_idle(scheduler, rank)["b"]
    assert deltas[0].num_cached_tokens == 12
    assert scheduler.stats().prefix_hits == 12


def test_a_prompt_that_is_cached_whole_still_computes_its_last_token() -> None:
    scheduler, rank = started(limits(), request("a", 8))
    run_until_idle(scheduler, rank)
    scheduler.add(request("b", 8))
    assert tokens_of(step(scheduler, rank)) == {"b": 4}


def test_another_picture_behind_the_same_tokens_is_no_shared_prefix() -> None:
    scheduler, rank = started(limits(), request("a", 9, image(0, ("one", 4))))
    run_until_idle(scheduler, rank)
    scheduler.add(request("b", 9, image(0, ("other", 4))))
    assert tokens_of(step(scheduler, rank)) == {"b": 9}


def test_the_newest_sequence_gives_way_when_blocks_run_out_and_ends_as_if_it_had_not() -> None:
    own = limits(num_blocks=5, max_model_len=20, max_num_batched_tokens=32)
    requests = [request("a", 8, max_tokens=8), request("b", 8, max_tokens=8, first_token=300)]
    scheduler, rank = started(own, *requests)
    deltas = run_until_idle(scheduler, rank)
    assert scheduler.stats().num_preemptions > 0
    for one in requests:
        assert [token for delta in deltas[one.request_id] for token in delta.token_ids] == answer_of(one)


def test_a_failed_unit_ends_its_requests_and_no_other() -> None:
    own = limits(max_num_batched_tokens=32)
    scheduler, rank = started(
        own, request("bad", 6, image(0, ("broken", 4))), request("good", 6, image(0, ("fine", 4))), request("text", 3)
    )
    rank.failing.add("broken")
    deltas = run_until_idle(scheduler, rank)
    assert [(delta.finish_reason, delta.error) for delta in deltas["bad"]] == [("error", "broken")]
    assert deltas["good"][-1].finish_reason == deltas["text"][-1].finish_reason == "length"
    assert scheduler.stats().kv_blocks_used == 0
    # The unit is tried again for the next one who asks.
    rank.failing.clear()
    scheduler.add(request("again", 6, image(0, ("broken", 4))))
    assert run_until_idle(scheduler, rank)["again"][-1].finish_reason == "length"


def test_a_unit_that_fails_ahead_is_not_tried_again_while_its_sequence_waits() -> None:
    own = limits(max_num_seqs=1, encoder_step_patches=64)
    scheduler, rank = started(own, request("text", 4, max_tokens=20))
    rank.failing.add("broken")
    step(scheduler, rank)
    scheduler.add(request("bad", 6, image(1, ("broken", 4)), first_token=300))
    scheduler.add(request("good", 6, image(1, ("fine", 4)), first_token=500))
    deltas = run_until_idle(scheduler, rank)
    assert rank.num_encoded == {"broken": 1, "fine": 1}
    assert [(delta.finish_reason, delta.error) for delta in deltas["bad"]] == [("error", "broken")]
    assert deltas["good"][-1].finish_reason == deltas["text"][-1].finish_reason == "length"


def test_units_kept_for_sequences_that_were_aborted_keep_no_room_from_others() -> None:
    """Half of 16 rows are for units ahead."""
    own = limits(max_num_seqs=1, encoder_step_patches=64)
    scheduler, rank = started(own, request("text", 4, max_tokens=20))
    step(scheduler, rank)
    for name in ("gone", "next"):
        scheduler.add(request(name, 9, image(1, (name, 7)), first_token=300))
        for _ in range(NUM_RESTS + 1):
            step(scheduler, rank)
        assert name in rank.features
        scheduler.abort([name])


def test_an_abort_frees_everything_wherever_the_sequence_is() -> None:
    scheduler, rank = started(limits(max_num_seqs=1), request("runs", 6, image(0, ("k", 4))), request("waits", 6))
    step(scheduler, rank)
    scheduler.abort(["runs", "waits", "unknown"])
    assert {delta.request_id: delta.finish_reason for delta in scheduler.take_deltas() if delta.finish_reason} == {
        "runs": "abort",
        "waits": "abort",
    }
    assert not scheduler.has_work
    stats = scheduler.stats()
    assert (stats.kv_blocks_used, stats.encoder_bytes_used, stats.num_running, stats.num_waiting) == (0, 0, 0, 0)


def test_stop_tokens_and_end_of_sequence_end_an_answer() -> None:
    def end(**params: object) -> tuple[object, object, int]:
        one = request("a", 2, max_tokens=5)
        one = msgspec.structs.replace(one, sampling=SamplingParams(max_tokens=5, temperature=0, **params))
        own = limits(eos_token_ids=(answer_of(one)[1],))
        scheduler, rank = started(own, one)
        deltas = run_until_idle(scheduler, rank)["a"]
        return deltas[-1].finish_reason, deltas[-1].stop_token_id, len(deltas)

    third = answer_of(request("a", 2, max_tokens=5))[2]
    assert end() == ("stop", None, 2)
    assert end(ignore_eos=True) == ("length", None, 5)
    assert end(ignore_eos=True, stop_token_ids=(third,)) == ("stop", third, 3)


def test_an_answer_ends_where_the_context_ends() -> None:
    scheduler, rank = started(limits(max_model_len=10), request("a", 8, max_tokens=50))
    assert len(run_until_idle(scheduler, rank)["a"]) == 2


def test_a_prefill_leaves_a_token_for_each_decoder_behind_it() -> None:
    own = limits(max_num_batched_tokens=8, max_num_batched_patches=16)
    clip = image(0, ("f0", 4), ("f1", 4))
    scheduler, rank = started(own, request("a", 20, clip), request("b", 4, max_tokens=9, first_token=300))
    assert tokens_of(step(scheduler, rank)) == {"a": 4, "b": 4}, "the encoder's budget ends a's first chunk"
    assert tokens_of(step(scheduler, rank)) == {"a": 7, "b": 1}


def test_a_full_encoder_cache_makes_nobody_give_way() -> None:
    """While one sequence reads a unit in part, another that needs room for its own waits; a decoder goes on."""
    own = limits(encoder_cache_bytes=8 * ROW_BYTES, max_num_batched_tokens=6, max_num_batched_patches=64)
    scheduler, rank = started(own, request("text", 2, max_tokens=20))
    step(scheduler, rank)
    scheduler.add(request("big", 8, image(0, ("big", 8))))
    scheduler.add(request("other", 8, image(0, ("other", 8)), first_token=300))
    plans = [step(scheduler, rank) for _ in range(6)]
    assert all(plan.scheduled[0].request_id == "text" for plan in plans)
    assert {name for plan in plans for name in tokens_of(plan)} == {"text", "big", "other"}
    assert scheduler.stats().num_preemptions == 0


def test_who_comes_first_is_served_first() -> None:
    scheduler, rank = started(limits(max_num_seqs=1), *(request(name, 2, max_tokens=1) for name in "abcd"))
    order = [plan.started[0].request_id for plan in (step(scheduler, rank) for _ in range(4))]
    assert order == list("abcd")


def test_a_sequence_that_gave_way_is_the_next_to_start_and_nobody_starts_in_a_short_step() -> None:
    own = limits(num_blocks=4, max_model_len=16, max_num_batched_tokens=32)
    scheduler, rank = started(own, request("a", 7, max_tokens=6), request("b", 7, max_tokens=6, first_token=300))
    scheduler.add(request("c", 1, max_tokens=1, first_token=500))
    started_in = []
    while not scheduler.stats().num_preemptions:
        plan = step(scheduler, rank)
    assert (plan.dropped, plan.started) == (("b",), ())
    while scheduler.has_work:
        started_in += [one.request_id for one in step(scheduler, rank).started]
    assert started_in == ["b", "c"]


def test_tokens_found_in_the_cache_are_counted_once_even_if_the_sequence_gives_way() -> None:
    own = limits(num_blocks=5, max_model_len=20, max_num_batched_tokens=32)
    scheduler, rank = started(own, request("a", 8, max_tokens=8), request("b", 8, max_tokens=8, first_token=300))
    deltas = run_until_idle(scheduler, rank)
    assert scheduler.stats().num_preemptions > 0
    assert {delta.num_cached_tokens for delta in deltas["b"]} == {0}, "its own blocks from before are no hits"
    assert scheduler.stats().prefix_queries == 16


def scored(one: EngineRequest) -> EngineRequest:
    """The same with log-probabilities of its prompt."""
    return msgspec.structs.replace(one, sampling=msgspec.structs.replace(one.sampling, prompt_logprobs=0))


def test_a_prompt_that_is_scored_takes_nothing_from_the_prefix_cache_and_leaves_all_there() -> None:
    scheduler, rank = started(limits(), request("a", 12))
    run_until_idle(scheduler, rank)
    scheduler.add(scored(request("b", 12)))
    (part,) = step(scheduler, rank).scheduled
    assert (part.num_computed_tokens, part.num_new_tokens, part.scored) == (0, 12, (0, 11))
    run_until_idle(scheduler, rank)
    scheduler.add(request("c", 12))
    assert tokens_of(step(scheduler, rank)) == {"c": 4}


def test_who_gave_way_while_it_was_scored_goes_on_where_it_was() -> None:
    """From the prefix cache, which may give what has been scored, but no more."""
    own = limits(num_blocks=10, max_num_batched_tokens=8)
    scheduler, rank = started(own, request("a", 7, max_tokens=30), scored(request("b", 33, first_token=300)))
    parts = []
    deltas: dict[str, list] = {"a": [], "b": []}
    while scheduler.has_work:
        parts += [part for part in step(scheduler, rank).scheduled if part.request_id == "b"]
        for delta in scheduler.take_deltas():
            deltas[delta.request_id].append(delta)
    before, again = next(
        (before, after)
        for before, after in pairwise(parts)
        if after.num_computed_tokens < before.num_computed_tokens + before.num_new_tokens
    )
    assert 0 < again.num_computed_tokens <= before.scored[1]
    ranges = [range(*part.scored) for part in parts]
    assert [position for each in ranges for position in each] == list(range(32)), "each is scored once"
    _check_scores(scored(request("b", 33, first_token=300)), deltas["b"])


def test_different_salts_share_nothing() -> None:
    scheduler, rank = started(limits(), request("a", 12))
    run_until_idle(scheduler, rank)
    scheduler.add(msgspec.structs.replace(request("b", 12), cache_salt="other"))
    assert tokens_of(step(scheduler, rank)) == {"b": 12}


def test_totals_of_the_encoder() -> None:
    clip = image(0, ("x", 4), ("y", 4), ("x", 4))
    scheduler, rank = started(limits(max_num_batched_tokens=32, max_num_batched_patches=64), request("a", 13, clip))
    rank.seconds = (0.5, 0.25)
    step(scheduler, rank)
    scheduler.add(request("b", 5, image(0, ("x", 4)), first_token=300))
    scheduler.add(request("c", 5, image(0, ("z", 4)), first_token=500))
    step(scheduler, rank)
    stats = scheduler.stats()
    assert (stats.encoder_queries, stats.encoder_hits, stats.units_encoded) == (5, 1, 3)
    assert stats.encoder_seconds == (1.0, 0.5)
    assert sum(stats.plan_reasons.values()) == 2


# A budget that one layer exceeds: a unit takes a step for each of them, and rests between, while "text" decodes.
_SMALLEST = {"encoder_step_seconds": 1e-12, "max_num_batched_tokens": 32}


def with_unit_under_way(own: SchedulerLimits, *requests: EngineRequest) -> tuple[Scheduler, MirrorRank]:
    """A scheduler that has begun with a unit of these requests while another one decodes."""
    scheduler, rank = started(own, request("text", 2, max_tokens=40, first_token=900))
    step(scheduler, rank)
    for one in requests:
        scheduler.add(one)
    assert step(scheduler, rank).vision.stop == 1
    return scheduler, rank


def test_a_unit_over_the_budget_is_encoded_layer_by_layer_and_read_in_the_step_that_ends_it() -> None:
    scheduler, rank = with_unit_under_way(limits(**_SMALLEST), request("a", 7, image(2, ("k", 4))))
    plans = [step(scheduler, rank) for _ in range((SHAPE.num_stages - 1) * (NUM_RESTS + 1))]
    encoding = [plan.vision for plan in plans if plan.vision]
    assert [(part.start, part.stop) for part in encoding] == [(n, n + 1) for n in range(1, SHAPE.num_stages)]
    assert [bool(plan.vision) for plan in plans[: NUM_RESTS + 1]] == [False] * NUM_RESTS + [True]
    assert all("text" in tokens_of(plan) for plan in plans), "decoding goes on"
    reading = {index: tokens_of(plan)["a"] for index, plan in enumerate(plans) if "a" in tokens_of(plan)}
    assert reading == {len(plans) - 1: 5}, "the text before it was read beside its first layer"
    stats = scheduler.stats()
    assert (stats.units_encoded, sum(stats.plan_reasons.values()), stats.encoder_hits) == (1, 1, 0)
    assert stats.encoder_predicted == pytest.approx(encoding[0].plan.predicted_seconds)


def test_nothing_else_is_begun_while_a_unit_is_under_way() -> None:
    both = [request("a", 6, image(1, ("k", 4))), request("b", 7, image(1, ("l", 5)), first_token=300)]
    scheduler, rank = with_unit_under_way(limits(**_SMALLEST), *both)
    while rank.under_way:
        step(scheduler, rank)
    assert rank.num_encoded == {"k": 1}
    run_until_idle(scheduler, rank)
    assert rank.num_encoded == {"k": 1, "l": 1}


def test_a_unit_under_way_is_left_off_if_nobody_reads_it_any_more() -> None:
    scheduler, rank = with_unit_under_way(limits(**_SMALLEST), request("a", 6, image(1, ("k", 4))))
    scheduler.abort(["a"])
    scheduler.add(request("b", 6, image(1, ("l", 4)), first_token=300))
    run_until_idle(scheduler, rank)
    assert (rank.num_encoded, rank.features) == ({"k": 1, "l": 1}, {"l": 4})
    assert scheduler.stats().units_encoded == 1


def test_a_unit_under_way_goes_on_for_another_who_reads_it() -> None:
    readers = [request(name, 6, image(1, ("k", 4)), first_token=first) for name, first in (("a", 100), ("b", 300))]
    scheduler, rank = with_unit_under_way(limits(**_SMALLEST), *readers)
    scheduler.abort(["a"])
    assert run_until_idle(scheduler, rank)["b"][-1].finish_reason == "length"
    assert rank.num_encoded == {"k": 1}


def test_a_unit_that_fails_under_way_ends_its_request_at_once() -> None:
    scheduler, rank = with_unit_under_way(limits(**_SMALLEST), request("bad", 6, image(1, ("broken", 4))))
    rank.failing.add("broken")
    rank.failing_stage = 2
    scheduler.add(request("good", 6, image(1, ("fine", 4)), first_token=300))
    deltas = run_until_idle(scheduler, rank)
    assert [(delta.finish_reason, delta.error) for delta in deltas["bad"]] == [("error", "broken")]
    assert deltas["good"][-1].finish_reason == deltas["text"][-1].finish_reason == "length"
    assert rank.num_encoded == {"broken": 1, "fine": 1}


def test_who_gives_way_while_its_unit_is_under_way_reads_it_later() -> None:
    """Blocks run out as the two before it decode; the unit is through before it can start again."""
    own = limits(**_SMALLEST, num_blocks=9, max_model_len=36)
    scheduler, rank = started(own, *(request(f"text{n}", 4, max_tokens=14, first_token=300 * n) for n in (1, 2)))
    step(scheduler, rank)
    late = request("late", 16, image(11, ("k", 4)), first_token=900)
    scheduler.add(late)
    while "late" not in step(scheduler, rank).dropped:
        pass
    assert rank.under_way
    deltas = run_until_idle(scheduler, rank)
    assert rank.num_encoded == {"k": 1}
    assert [token for delta in deltas["late"] for token in delta.token_ids] == answer_of(late)


def test_a_unit_that_nobody_may_keep_is_there_for_its_reader() -> None:
    """And room for it, though others pin cached units meanwhile."""
    own = limits(**_SMALLEST, encoder_kept_bytes=0, encoder_cache_bytes=4 * ROW_BYTES)
    reader = request("a", 6, image(1, ("k", 4)))
    scheduler, rank = with_unit_under_way(own, reader)
    deltas = run_until_idle(scheduler, rank)
    assert [token for delta in deltas["a"] for token in delta.token_ids] == answer_of(reader)
    assert rank.num_encoded == {"k": 1}
    assert scheduler.stats().encoder_bytes_used == 0


def test_two_that_have_too_few_blocks_for_both_are_answered_all_the_same() -> None:
    """The first waits for the second, whose prompt has no room beside it."""
    own = limits(
        num_blocks=12,
        max_num_batched_tokens=17,
        max_num_batched_patches=16,
        encoder_cache_bytes=13 * ROW_BYTES,
        encoder_kept_bytes=0,
        enable_prefix_caching=False,
        num_ranks=1,
    )
    first = request("first", 37, image(21, ("y", 5), ("w", 3)), image(30, ("z", 6)), max_tokens=1)
    second = request("second", 40, image(22, ("v", 2), ("x", 4), ("w", 3)), max_tokens=2, first_token=300)
    run_until_idle(*started(own, first, second), max_steps=30)


def test_a_unit_under_way_is_left_off_when_its_last_reader_ends_in_a_rest() -> None:
    own = limits(
        encoder_step_seconds=1e-12,
        max_num_batched_tokens=32,
        max_num_batched_patches=64,
        encoder_kept_bytes=0,
        enable_prefix_caching=False,
    )
    for num_tokens in range(4, 12):
        first = request("a", 9, image(1, ("big", 6)), max_tokens=num_tokens)
        second = request("b", 9, image(1, ("big", 6)), max_tokens=3, first_token=300)
        for num_steps in range(1, 16):
            scheduler, rank = started(own, first)
            for _ in range(3):
                step(scheduler, rank)
            scheduler.add(second)
            for _ in range(num_steps):
                if scheduler.has_work:
                    step(scheduler, rank)
            scheduler.abort(["b"])
            run_until_idle(scheduler, rank)
            assert scheduler._encoder_cache.can_pin({"any": 16}), "no room is reserved"


def test_who_has_no_blocks_yet_does_not_make_pictures_wait() -> None:
    """A text that can't start waits for no token of this step, so the picture beside it needs no budget."""
    own = limits(num_blocks=12, encoder_step_seconds=1e-12, enable_prefix_caching=False, max_num_batched_tokens=32)
    scheduler, rank = started(own, request("picture", 44, image(36, ("big", 6)), max_tokens=1))
    assert step(scheduler, rank).vision is None, "its first chunk ends before the picture"
    scheduler.add(request("text", 40, max_tokens=1, first_token=300))
    vision = step(scheduler, rank).vision
    assert vision is not None
    assert (vision.start, vision.stop) == (0, SHAPE.num_stages)


def test_a_picture_behind_a_long_text_is_begun_once() -> None:
    """Where nothing is kept, it would be lost again before the text is read to where it stands."""
    own = limits(
        num_blocks=64,
        max_model_len=120,
        max_num_batched_tokens=60,
        max_num_batched_patches=64,
        encoder_kept_bytes=0,
        encoder_step_seconds=3e-4,
    )
    scheduler, rank = started(own, request("talk", 20, max_tokens=60, first_token=500))
    rank.token_seconds = 1e-5
    for _ in range(8):
        step(scheduler, rank)
    scheduler.add(request("text", 100, image(80, ("big", 6)), max_tokens=1))
    run_until_idle(scheduler, rank)
    assert rank.num_encoded["big"] == 1


_REQUESTS = st.lists(
    st.tuples(
        st.integers(1, 20),  # tokens of text
        st.lists(st.lists(st.tuples(st.sampled_from("uvwxyz"), st.just(0)), min_size=1, max_size=3), max_size=2),
        st.integers(1, 8),  # tokens of the answer
        st.integers(0, 3),  # steps before the next one arrives
        st.none() | st.integers(0, 20),  # steps after which it is aborted, if it is
    ),
    min_size=1,
    max_size=8,
)
_SIZES = {key: size for size, key in enumerate("uvwxyz", start=1)}
_STEPS_OF_EVENTS = 7 * 3 + 20 + 1
# A unit is predicted to take from 2e-5 to 2e-4; None is the scheduler's own budget.
_STEP_SECONDS = st.sampled_from([None, 1e-12, 5e-5, 1e-4, 3e-4])


@settings(max_examples=200, deadline=None)
@given(
    described=_REQUESTS,
    num_blocks=st.integers(12, 20),
    num_seqs=st.integers(1, 6),
    tokens=st.integers(1, 24),
    patches=st.sampled_from([4, 16, 64]),
    step_seconds=_STEP_SECONDS,
    step_patches=st.sampled_from([None, 1, 8, 16]),
    encoder_rows=st.integers(6, 20),
    kept_rows=st.integers(0, 20),
    caches=st.booleans(),
    failing=st.sampled_from(["", "w", "uz"]),
    failing_stage=st.integers(0, SHAPE.num_stages - 1),
    attends=st.booleans(),
    followers=st.sampled_from([0, 1]),
    token_seconds=st.sampled_from([0.0, 1e-5, 1e-3]),
    scores_every=st.sampled_from([1, 2, 100]),
)
@example(  # one that gave way finds all but its newest token in the prefix cache, and its images nowhere
    described=[
        (1, [], 1, 0, None),
        (4, [[("u", 0)], [("u", 0)]], 8, 0, None),
        (20, [[("u", 0)], [("u", 0), ("y", 0)]], 3, 0, None),
    ],
    num_blocks=12,
    num_seqs=2,
    tokens=15,
    patches=4,
    step_seconds=None,
    step_patches=16,
    encoder_rows=6,
    kept_rows=0,
    caches=True,
    failing="",
    failing_stage=0,
    attends=True,
    followers=0,
    token_seconds=0.0,
    scores_every=100,
)
def test_everything_adds_up_whatever_comes(
    described: list[tuple[int, list[list[tuple[str, int]]], int, int, int | None]],
    num_blocks: int,
    num_seqs: int,
    tokens: int,
    patches: int,
    step_seconds: float | None,
    step_patches: int | None,
    encoder_rows: int,
    kept_rows: int,
    caches: bool,
    failing: str,
    failing_stage: int,
    attends: bool,
    followers: int,
    token_seconds: float,
    scores_every: int,
) -> None:
    """Every request gets its own answer, plans obey their limits, and nothing is held at the end."""
    make = _make_seeing if attends else _make
    requests = [
        msgspec.structs.replace(make(f"r{index}", *entry[:3]), num_followers=followers)
        for index, entry in enumerate(described)
    ]
    requests = [one if index % scores_every else scored(one) for index, one in enumerate(requests)]
    if attends:  # the frontend lets none pass whose images do not fit
        encoder_rows = max(encoder_rows, *map(_num_rows, requests))
    own = limits(
        num_blocks=num_blocks,
        max_num_seqs=num_seqs,
        max_num_batched_tokens=tokens,
        max_num_batched_patches=patches,
        encoder_step_seconds=step_seconds,
        encoder_step_patches=step_patches,
        encoder_cache_bytes=encoder_rows * ROW_BYTES,
        encoder_kept_bytes=kept_rows * ROW_BYTES,
        enable_prefix_caching=caches,
    )
    scheduler, rank = Scheduler(own), MirrorRank(own, failing, failing_stage)
    rank.token_seconds = token_seconds
    arrivals = list(accumulate((entry[3] for entry in described[:-1]), initial=0))
    aborts = [None if entry[4] is None else at + entry[4] for at, entry in zip(arrivals, described, strict=True)]
    deltas = {one.request_id: [] for one in requests}
    for now in range(_STEPS_OF_EVENTS):
        for one, arrival, abort in zip(requests, arrivals, aborts, strict=True):
            if now == arrival:
                scheduler.add(one)
            if now == abort:
                scheduler.abort([one.request_id])
        for delta in scheduler.take_deltas():
            deltas[delta.request_id].append(delta)
        if scheduler.has_work:
            plan = step(scheduler, rank)
            assert plan.scheduled or plan.vision, "nothing is done, though there is work"
    for name, news in run_until_idle(scheduler, rank).items():
        deltas[name] += news
    aborted = {one.request_id for one, abort in zip(requests, aborts, strict=True) if abort is not None}
    for one in requests:
        _check_answer(one, deltas[one.request_id], one.request_id in aborted, failing)
    stats = scheduler.stats()
    assert (stats.kv_blocks_used, stats.encoder_bytes_used, stats.num_running, stats.num_waiting) == (0, 0, 0, 0)
    assert scheduler._encoder_cache.can_pin({"any": encoder_rows}), "nor is room reserved"
    assert scheduler._encoder_cache.num_bytes == sum(rank.features.values()) * ROW_BYTES


def _make(name: str, num_text: int, clips: list[list[tuple[str, int]]], max_tokens: int) -> EngineRequest:
    items, offset = [], num_text
    for clip in clips:
        items.append(image(offset, *((key, _SIZES[key]) for key, _ in clip)))
        offset = items[-1].end + 1
    total = min(offset, 40)
    kept = tuple(item for item in items if item.end <= total)
    return request(name, total, *kept, max_tokens=max_tokens)


def _make_seeing(name: str, num_text: int, clips: list[list[tuple[str, int]]], max_tokens: int) -> EngineRequest:
    """The same with images that text attends to; those of a clip stand side by side."""
    placed, offset = [], num_text
    for clip in clips:
        placed += [(offset + index, key, _SIZES[key]) for index, (key, _) in enumerate(clip)]
        offset += len(clip) + 2
    return request(name, min(offset, 40), *seen_images(*placed), max_tokens=max_tokens)


def _num_rows(one: EngineRequest) -> int:
    return sum({unit.key: unit.num_tokens for item in one.items for unit in item.units}.values())


def _check_answer(one: EngineRequest, deltas: list, is_aborted: bool, failing: str) -> None:
    got = [token for delta in deltas for token in delta.token_ids]
    expected = answer_of(one)
    assert got == expected[: len(got)], "another answer than it would get alone"
    _check_scores(one, deltas)
    assert sum(delta.finish_reason is not None for delta in deltas) == 1
    reads_failing = any(unit.key in failing for item in one.items for unit in item.units)
    if deltas[-1].finish_reason == "error":
        assert reads_failing
    elif not is_aborted:
        assert not reads_failing
        assert got == expected


def _check_scores(one: EngineRequest, deltas: list) -> None:
    """Each token of the prompt is reported once, in order, before the first token of the answer."""
    found = [score for delta in deltas for score in delta.prompt_logprobs]
    expected = [score_of(token, position) for position, token in enumerate(one.token_ids[1:], start=1)]
    if one.sampling.prompt_logprobs is None:
        assert not found
        return
    assert found == expected[: len(found)]
    first = next((delta for delta in deltas if delta.token_ids), None)
    if first is not None:
        assert found == expected
        assert not any(delta.prompt_logprobs for delta in deltas[deltas.index(first) :])

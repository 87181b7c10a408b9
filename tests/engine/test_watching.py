"""What the core tells of its steps, and of when things happened to a request."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from chiasm.config.engine import EngineConfig
from chiasm.engine.core.request_clocks import RequestClocks
from chiasm.engine.core.step_feed import StepFeed
from chiasm.engine.scheduler.scheduler import Scheduler
from chiasm.models.loader import load_model
from chiasm.schema.output import RequestTimes
from chiasm.schema.plan import StepPlan
from chiasm.schema.request import EngineRequest
from chiasm.schema.steps import EncoderBegan, StepNews, StepsEnded
from tests.checkpoints.common import SavedModel
from tests.engine.driven import request, running
from tests.engine.mirror import SHAPE, MirrorRank, image, limits
from tests.engine.mirror import request as bare_request
from tests.prompts import make_prompt

pytestmark = pytest.mark.usefixtures("forked_children")


@pytest.fixture
def requests(qwen2_5_vl: SavedModel, tmp_path: Path) -> list[EngineRequest]:
    """Two with pictures and one without."""
    facts = load_model(qwen2_5_vl.folder, dtype=torch.float32, device=torch.device("cpu")).facts
    prompts = [make_prompt(facts, pieces) for pieces in ([9, (1, 8, 12), 3], [5], [2, (1, 4, 4), 5, (1, 8, 8), 2])]
    return [request(f"r{index}", prompt, tmp_path, max_tokens=4) for index, prompt in enumerate(prompts)]


def test_steps_are_told_while_watched(qwen2_5_vl: SavedModel, requests: list[EngineRequest]) -> None:
    config = EngineConfig(
        model=str(qwen2_5_vl.folder), dtype="float32", max_num_batched_tokens=32, kv_cache_memory_bytes=2**22
    )
    news: list[StepNews] = []
    times: dict[str, list[RequestTimes]] = {one.request_id: [] for one in requests}
    with running(config) as core:
        core.add(requests[0])
        core.step()
        core.watch(news.append)
        for one in requests[1:]:
            core.add(one)
        while core.has_work:
            core.step()
            for delta in core.take_deltas():
                times[delta.request_id] += [delta.times] if delta.times else []
        stats = core.stats()
        core.watch(None)
        told = len(news)
        core.add(requests[1])
        while core.has_work:
            core.step()
        core.take_deltas()
    assert len(news) == told > 0
    begun = [one for one in news if isinstance(one, EncoderBegan)]
    ended = {one.encoder_step: one for one in news if isinstance(one, StepsEnded)}
    assert {rows.key for one in begun for lane in one.lanes for rows in lane} == {
        unit.key for item in requests[2].items for unit in item.units
    }
    for one in begun:
        assert one.reason
        assert (one.start, one.stop) == (0, one.num_stages)
        assert all(0 == rows.start < rows.stop == rows.num_rows for rows in one.lanes[0])
        assert one.time < ended[one.step].time
        assert len(ended[one.step].encoder_seconds) == 1
    # The first step was not watched, of the others none is missing.
    assert sum(one.num_steps for one in news if isinstance(one, StepsEnded)) == stats.steps - 1
    for name, [first] in times.items():
        assert first.added <= first.taken_up <= first.started <= first.first_token
        has_media = name != "r1"
        assert (first.encode_seconds > 0) == has_media
        if first.encode_start is not None and first.encode_end is not None:
            assert first.added <= first.encode_start < first.encode_end <= first.first_token


def drive(
    scheduler: Scheduler, clocks: RequestClocks, rank: MirrorRank, feed: StepFeed, num_steps: int = 100
) -> list[StepPlan]:
    plans: list[StepPlan] = []
    while scheduler.has_work and len(plans) < num_steps:
        plan = scheduler.schedule()
        clocks.begin(plan)
        feed.begin(plan)
        result = rank.execute(plan)
        clocks.end(plan)
        scheduler.apply(plan, result)
        feed.end(plan, result, scheduler.stats(), is_idle=not scheduler.has_work)
        clocks.stamp(scheduler.take_deltas())
        plans.append(plan)
    return plans


def test_units_encoded_ahead_are_counted_and_lanes_are_the_plans() -> None:
    """With a place for one more sequence, the next one's image is encoded by the rank that would else wait."""
    own = limits(max_num_seqs=2, max_num_batched_tokens=64, num_blocks=64, encoder_step_seconds=float("inf"))
    scheduler, clocks, news = Scheduler(own), RequestClocks(SHAPE.num_stages), list[StepNews]()
    feed, rank = StepFeed(2, SHAPE.num_stages, news.append), MirrorRank(own)
    for name, items in (("talk", ()), ("a", (image(1, ("a0", 4)),)), ("b", (image(1, ("b0", 4)),))):
        one = bare_request(name, 12, *items, max_tokens=20 if name == "talk" else 3)
        scheduler.add(one)
        clocks.add(one)
        if name == "talk":
            drive(scheduler, clocks, rank, feed, num_steps=1)
    plans = drive(scheduler, clocks, rank, feed)
    vision = [plan.vision.plan for plan in plans if plan.vision]
    assert {unit.key for unit in vision[0].units} == {"a0", "b0"}  # or nothing was ahead, and this tests nothing
    assert clocks.units_ahead == 1
    begun = [one for one in news if isinstance(one, EncoderBegan)]
    assert [{rows.key for lane in one.lanes for rows in lane} for one in begun] == [
        {unit.key for unit in plan.units} for plan in vision
    ]
    for one, plan in zip(begun, vision, strict=True):
        for assignment in plan.assignments:
            for share in assignment.shares:
                [rows] = [rows for rows in one.lanes[share.rank] if rows.key == assignment.unit.key]
                assert (rows.start, rows.stop) == (share.start, share.stop)


def test_every_rank_has_all_rows_where_weights_are_sharded() -> None:
    own = limits(num_ranks=2, encoder_mode="weights", max_num_batched_tokens=64, num_blocks=64)
    scheduler, clocks, news = Scheduler(own), RequestClocks(SHAPE.num_stages), list[StepNews]()
    one = bare_request("a", 12, image(1, ("a0", 4)), max_tokens=1)
    scheduler.add(one)
    clocks.add(one)
    drive(scheduler, clocks, MirrorRank(own), StepFeed(2, SHAPE.num_stages, news.append))
    [begun] = [one for one in news if isinstance(one, EncoderBegan)]
    assert begun.lanes[0] == begun.lanes[1]
    assert [(rows.start, rows.stop) for rows in begun.lanes[0]] == [(0, begun.lanes[0][0].num_rows)]

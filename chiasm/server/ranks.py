"""``/ranks/events``: what the ranks do, live, for the page."""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from chiasm.errors import OverloadedError
from chiasm.schema.output import EngineStats
from chiasm.schema.steps import EncoderBegan, NamedNews, StepsEnded, UnitName
from chiasm.server.sse import EventStream
from chiasm.server.state import ServerState

_MAX_WATCHERS = 16
_PAGE_REQUEST = re.compile(r"page-\d+-\d+")
_SALT = secrets.token_bytes(16)


class Gauges(msgspec.Struct, frozen=True):
    """How full the engine is."""

    running: int
    waiting: int
    kv_cache: float
    units_encoded: int
    cache_hits: int
    cache_queries: int


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first event.

    Attributes:
        time: now; all times are seconds on this clock.
        num_ranks: of the engine.
        frames_per_unit: of a video.
        gauges: now.
    """

    time: float
    num_ranks: int
    frames_per_unit: int
    gauges: Gauges


class Began(msgspec.Struct, frozen=True, tag="begin"):
    """A step with vision work begins.

    Attributes:
        step: its number.
        time: when.
        reason: of the plan.
        predicted: seconds of this step.
        stages: of the passes through the tower: done before, done after, in all.
        lanes: for each rank what it encodes: [index of the unit in ``units``, first row, end of the rows].
        units: [rows, name]; without a name where the request has ended.
    """

    step: int
    time: float
    reason: str
    predicted: float
    stages: tuple[int, int, int]
    lanes: list[list[tuple[int, int, int]]]
    units: list[tuple[int, UnitName | None]]


class Ended(msgspec.Struct, frozen=True, tag="end"):
    """Steps have ended.

    Attributes:
        time: when the last one did.
        steps: how many.
        compute: seconds of the language model in them.
        gauges: after them.
        encoder_step: the one with vision work; None if there was none.
        seconds: of each rank's part in that.
        makespan: until all were through.
    """

    time: float
    steps: int
    compute: float
    gauges: Gauges
    encoder_step: int | None
    seconds: tuple[float, ...]
    makespan: float


def ranks_router(state: ServerState) -> APIRouter:
    """The feed of one server; no API that clients should build on, so no schema describes it."""
    router = APIRouter(include_in_schema=False)
    num_watchers = 0

    async def events() -> AsyncGenerator[msgspec.Struct, None]:
        nonlocal num_watchers
        num_watchers += 1
        try:
            engine = state.engine
            num_frames = engine.facts.processor.temporal_patch_size
            yield Hello(time.perf_counter(), engine.num_ranks, num_frames, _gauges(engine.stats))
            async with aclosing(engine.watch_steps()) as steps:
                async for news in steps:
                    yield _event(news)
        finally:
            num_watchers -= 1

    @router.get("/ranks/events")
    async def watch_ranks() -> Response:
        """Events until the client leaves or the server is asked to stop."""
        if num_watchers >= _MAX_WATCHERS:
            raise OverloadedError(f"At most {_MAX_WATCHERS} watch the ranks at a time.", reason="watchers")
        stream = events()
        return EventStream(await anext(stream), stream, state.draining)

    return router


def _event(named: NamedNews) -> msgspec.Struct:
    news = named.news
    return _began(news, named) if isinstance(news, EncoderBegan) else _ended(news)


def _began(news: EncoderBegan, named: NamedNews) -> Began:
    """With indices in place of keys, which are long and tell of the pixels."""
    indices: dict[str, int] = {}
    units: list[tuple[int, UnitName | None]] = []
    lanes: list[list[tuple[int, int, int]]] = []
    for lane in news.lanes:
        lanes.append([])
        for rows in lane:
            if rows.key not in indices:
                indices[rows.key] = len(units)
                units.append((rows.num_rows, _shown(named.names.get(rows.key))))
            lanes[-1].append((indices[rows.key], rows.start, rows.stop))
    stages = (news.start, news.stop, news.num_stages)
    return Began(news.step, news.time, news.reason, news.predicted_seconds, stages, lanes, units)


def _shown(name: UnitName | None) -> UnitName | None:
    """As a watcher may see it: a page knows its own requests; ids of others, which clients choose, are hidden."""
    if name is None:
        return None
    own = _PAGE_REQUEST.search(name.request_id)
    hidden = hashlib.blake2b(name.request_id.encode(), key=_SALT, digest_size=8).hexdigest()
    return msgspec.structs.replace(name, request_id=own[0] if own else hidden)


def _ended(news: StepsEnded) -> Ended:
    return Ended(
        news.time,
        news.num_steps,
        news.compute_seconds,
        _gauges(news.stats),
        news.encoder_step,
        news.encoder_seconds,
        news.encoder_makespan,
    )


def _gauges(stats: EngineStats) -> Gauges:
    kv_cache = stats.kv_blocks_used / stats.kv_blocks if stats.kv_blocks else 0.0
    return Gauges(
        stats.num_running, stats.num_waiting, kv_cache, stats.units_encoded, stats.encoder_hits, stats.encoder_queries
    )

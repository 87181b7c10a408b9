"""``/ranks/events``: what the page is told of the ranks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import pytest

from chiasm.schema.output import EngineStats
from chiasm.schema.steps import EncoderBegan, NamedNews, StepsEnded, UnitName, UnitRows
from tests.clocks import wait_until
from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer

LANES = ((UnitRows("k1", 0, 64, 96), UnitRows("k2", 0, 8, 8)), (UnitRows("k1", 64, 96, 96),))
BEGAN = EncoderBegan(7, 100.0, "cut by rows", 0.5, 0, 4, 4, LANES)
ENDED = StepsEnded(100.5, 1, 0.25, EngineStats(num_running=2, kv_blocks=8, kv_blocks_used=2), 7, (0.4, 0.3), 0.45)
NAME = UnitName("chatcmpl-x-secret-1", "video", 1, 2, 8)


@contextmanager
def feed(server: RunningServer) -> Iterator[Iterator[dict[str, Any]]]:
    """The events of a connection."""
    with server.client.stream("GET", "/ranks/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: "))


def test_the_course_of_a_step(server: RunningServer, engine: FakeEngine) -> None:
    engine.stats = EngineStats(encoder_queries=5, encoder_hits=3)
    engine.news += [NamedNews(BEGAN, {"k1": NAME}), NamedNews(ENDED)]
    with feed(server) as events:
        hello, began, ended = (next(events) for _ in range(3))
    assert (hello["type"], hello["num_ranks"], hello["frames_per_unit"]) == ("hello", 2, 2)
    assert (hello["gauges"]["cache_queries"], hello["gauges"]["cache_hits"]) == (5, 3)
    assert began == {
        "type": "begin", "step": 7, "time": 100.0, "reason": "cut by rows", "predicted": 0.5, "stages": [0, 4, 4],
        "lanes": [[[0, 0, 64], [1, 0, 8]], [[0, 64, 96]]],
        "units": [
            [96, {"request_id": began["units"][0][1]["request_id"], "modality": "video", "item": 1,
                  "unit": 2, "num_units": 8}],
            [8, None],
        ],
    }  # fmt: skip
    assert "x-secret" not in json.dumps(began)  # a client's choice is its own business
    assert (ended["type"], ended["encoder_step"], ended["seconds"], ended["makespan"]) == ("end", 7, [0.4, 0.3], 0.45)
    assert (ended["gauges"]["running"], ended["gauges"]["kv_cache"]) == (2, 0.25)
    wait_until(lambda: engine.num_watching == 0)


def test_a_page_knows_its_own_requests(server: RunningServer, engine: FakeEngine) -> None:
    ids = ("chatcmpl-page-12-34-abcd", "chatcmpl-page-12-34-abcd", "cmpl-a-1", "cmpl-a-1", "cmpl-b-1")
    names = [msgspec.structs.replace(NAME, request_id=one) for one in ids]
    engine.news += [NamedNews(BEGAN, {"k1": name}) for name in names]
    with feed(server) as events:
        next(events)
        shown = [next(events)["units"][0][1]["request_id"] for _ in ids]
    assert shown[:2] == ["page-12-34"] * 2
    assert shown[2] == shown[3] != shown[4]
    assert len(shown[2]) == 16
    wait_until(lambda: engine.num_watching == 0)


def test_nothing_is_asked_of_the_engine_while_nobody_watches(server: RunningServer, engine: FakeEngine) -> None:
    engine.news += [NamedNews(ENDED)]
    server.chat()
    assert engine.num_watching == 0
    with feed(server) as events:
        next(events)
        next(events)
        assert engine.num_watching == 1
    wait_until(lambda: engine.num_watching == 0)


def test_the_number_of_watchers_is_bounded(server: RunningServer, engine: FakeEngine) -> None:
    with ExitStack() as stack:
        feeds = [stack.enter_context(feed(server)) for _ in range(16)]
        assert {next(events)["type"] for events in feeds} == {"hello"}
        refused = server.client.get("/ranks/events")
        assert (refused.status_code, refused.headers["retry-after"].isdecimal()) == (503, True)
        assert "At most 16" in refused.json()["error"]["message"]
    wait_until(lambda: engine.num_watching == 0)
    with feed(server) as events:
        next(events)
    wait_until(lambda: engine.num_watching == 0)


def test_it_ends_when_the_server_is_asked_to_stop() -> None:
    """Or an open page would hold up every restart for as long as requests may take."""
    with RunningServer() as server, feed(server) as events:
        next(events)
        wait_until(lambda: server.engine.num_watching == 1)
        server.loop.call_soon_threadsafe(server.state.draining.set)
        assert "shutting down" in next(events)["error"]["message"]


def test_it_goes_with_the_page_and_needs_the_key() -> None:
    with RunningServer(ui=False) as server:
        assert server.client.get("/ranks/events").status_code == 404
    with RunningServer(api_keys=("k",)) as server:
        assert server.client.get("/ranks/events").status_code == 401
        with server.client.stream("GET", "/ranks/events", headers={"authorization": "Bearer k"}) as response:
            assert response.status_code == 200
        wait_until(lambda: server.engine.is_idle)


@pytest.mark.parametrize("path", ["/", "/ranks/events"])
def test_no_schema_describes_it(server: RunningServer, path: str) -> None:
    assert path not in server.client.get("/openapi.json").json()["paths"]

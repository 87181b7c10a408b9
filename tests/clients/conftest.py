"""Servers on two ranks, the charts, and the clients' environments; all of it only where environments may be made."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.charts import MAX_TOKENS, Asked, ask_charts
from tests.clients.environments import Environment, make_environment
from tests.clients.scripted import save_scripted
from tests.e2e.servers import Server
from tests.skipped import needs

_RUNNING = "chiasm:num_requests_running"
_BLOCKS = "chiasm:kv_cache_usage_perc"
_KEPT_IN = os.environ.get("CLIENT_ENVIRONMENTS")
_SECONDS = 1800  # the first test of a client also installs it


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark this folder's tests, and skip them where nobody has said where environments may be made."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.clients)
            item.add_marker(pytest.mark.timeout(_SECONDS))
            if not _KEPT_IN:
                item.add_marker(pytest.mark.skip(reason=needs("client", "make clients, which takes 7 GB")))


@pytest.fixture(scope="session")
def install(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Environment]]:
    """Gives a client's environment; at the end no client may have looked for anything but the server."""
    outside, kept_in = tmp_path_factory.mktemp("outside"), Path(_KEPT_IN or "").absolute()

    def make(name: str) -> Environment:
        return Environment(make_environment(kept_in, name), outside / name)

    yield make
    tried = {file.name: sorted(set(file.read_text(encoding="utf-8").split())) for file in outside.iterdir()}
    assert not tried, f"clients looked for {tried}"


@pytest.fixture(scope="session")
def charts_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The built-in chart reader."""
    with Server(None, tmp_path_factory.mktemp("charts_server") / "log", "-tp", "2") as server:
        yield server
        _await_idle(server)


@pytest.fixture(scope="session")
def tools_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A model that calls a tool by itself."""
    folder = save_scripted(tmp_path_factory.mktemp("scripted"))
    flags = ["-tp", "2", "--dtype", "float32", "--served-model-name", "scripted"]
    flags += ["--enable-auto-tool-choice", "--tool-call-parser", "hermes", "--reasoning-parser", "qwen3"]
    with Server(folder, tmp_path_factory.mktemp("tools_server") / "log", *flags) as server:
        yield server
        _await_idle(server)


@pytest.fixture(scope="session")
def charts(charts_server: Server, tmp_path_factory: pytest.TempPathFactory) -> list[Asked]:
    """What the chart reader says with no client in between."""
    asked = ask_charts(charts_server, tmp_path_factory.mktemp("charts"))
    assert sum(chart.is_right for chart in asked) > len(asked) * 0.6, "the built-in model reads charts"
    return asked


@pytest.fixture(scope="session")
def given(charts_server: Server, tools_server: Server, charts: list[Asked]) -> dict[str, Any]:
    """What drivers are told."""
    asked = [{"url": chart.url, "question": chart.question} for chart in charts]
    urls = {"charts_url": charts_server.url, "tools_url": tools_server.url}
    return {**urls, "charts": asked, "max_tokens": MAX_TOKENS}


def _await_idle(server: Server) -> None:
    server.await_metric(_RUNNING, 0)
    server.await_metric(_BLOCKS, 0)

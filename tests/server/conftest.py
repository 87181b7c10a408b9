"""One server for all tests that need no settings of their own."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer


@pytest.fixture(scope="session")
def _shared_server() -> Iterator[RunningServer]:
    with RunningServer() as server:
        yield server


@pytest.fixture
def server(_shared_server: RunningServer) -> Iterator[RunningServer]:
    """A running server whose engine is as new; a test must leave nothing behind in the engine."""
    _shared_server.engine.reset()
    yield _shared_server
    assert _shared_server.engine.is_idle


@pytest.fixture
def engine(server: RunningServer) -> FakeEngine:
    """The engine behind ``server``."""
    return server.engine


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """OpenAI's client, unmodified."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client

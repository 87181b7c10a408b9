"""One server for all tests that need no settings of their own."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server.fake_engine import FakeEngine
from tests.server.running import RunningServer, as_new, client_of


@pytest.fixture(scope="session")
def _shared_server() -> Iterator[RunningServer]:
    with RunningServer() as server:
        yield server


@pytest.fixture
def server(_shared_server: RunningServer) -> Iterator[RunningServer]:
    """A running server whose engine is as new; a test must leave nothing behind in the engine."""
    with as_new(_shared_server):
        yield _shared_server


@pytest.fixture
def engine(server: RunningServer) -> FakeEngine:
    """The engine behind ``server``."""
    return server.engine


@pytest.fixture
def client(server: RunningServer) -> Iterator[openai.OpenAI]:
    """OpenAI's client, unmodified."""
    with client_of(server) as client:
        yield client


@pytest.fixture(scope="session")
def _shared_tool_server() -> Iterator[RunningServer]:
    with RunningServer(enable_auto_tool_choice=True, tool_call_parser="hermes", reasoning_parser="qwen3") as server:
        yield server


@pytest.fixture
def tool_server(_shared_tool_server: RunningServer) -> Iterator[RunningServer]:
    """A server that reads calls and reasoning, as new."""
    with as_new(_shared_tool_server):
        _shared_tool_server.engine.added_tokens = {}
        yield _shared_tool_server

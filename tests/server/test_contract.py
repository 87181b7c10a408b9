"""The OpenAPI document says what the server does."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.contract import KEY, check_contract, find_schemathesis
from chiasm.server.middleware import OPEN_PATHS
from tests.server.running import RunningServer, as_new
from tests.skipped import needs


@pytest.fixture(scope="module")
def locked_server() -> Iterator[RunningServer]:
    """A server that wants a key."""
    with RunningServer(api_keys=(KEY,)) as server, as_new(server):
        yield server


def operations(server: RunningServer) -> Iterator[tuple[str, dict[str, Any]]]:
    answer = server.client.get("/openapi.json", headers={"authorization": f"Bearer {KEY}"})
    for path, methods in answer.json()["paths"].items():
        for operation in methods.values():
            yield path, operation


def test_every_answer_is_described(locked_server: RunningServer) -> None:
    """None is left to FastAPI's words: it would say that any JSON may come, and errors of its own."""
    for path, operation in operations(locked_server):
        responses = operation["responses"]
        assert "HTTPValidationError" not in str(responses), path
        assert ("401" in responses, "security" in operation) == (path not in OPEN_PATHS,) * 2, path
        if "requestBody" in operation:
            assert {"200", "400", "408", "413", "500", "503", "504"} <= responses.keys(), path
        for status, response in responses.items():
            for kind, content in response.get("content", {}).items():
                assert content["schema"].get("type") in ("object", "string"), (path, status, kind)


def test_streams_are_described(locked_server: RunningServer) -> None:
    by_path = dict(operations(locked_server))
    for path in ("/v1/chat/completions", "/v1/completions"):
        stream = by_path[path]["responses"]["200"]["content"]["text/event-stream"]
        assert stream["schema"]["type"] == "string"
        assert {"id", "choices", "object"} <= stream["x-event-schema"]["properties"].keys()


@pytest.mark.skipif(find_schemathesis() is None, reason=needs("contract", "pip install schemathesis"))
def test_schemathesis_finds_nothing(locked_server: RunningServer, tmp_path: Path) -> None:
    program = find_schemathesis()
    assert program is not None
    status, printed = check_contract(program, locked_server.url, examples=10, seed=1, folder=str(tmp_path))
    assert status == 0, printed[-8000:]
    assert " passed" in printed


def test_a_wrong_method_is_told_all_right_ones(server: RunningServer) -> None:
    answer = server.client.patch("/v1/responses/resp_1")
    assert answer.status_code == 405
    assert answer.headers["allow"] == "DELETE, GET, HEAD"

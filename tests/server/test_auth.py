"""API keys: every route but three asks for one, whatever the Host header or the spelling of the path."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from starlette.routing import Route

from chiasm.server import middleware
from chiasm.server.app import create_app
from chiasm.server.page import PAGE_PATHS
from tests.server.running import RunningServer


@pytest.fixture(scope="module")
def guarded() -> Iterator[RunningServer]:
    """A server with two keys."""
    with RunningServer(api_keys=("first-key", "clé"), ui=False) as server:
        yield server


def routes_of(app: Any) -> Iterator[tuple[str, str]]:
    """Method and path of every route, those that no document shows among them."""
    while not hasattr(app, "routes"):
        app = app._app  # the layers around it
    for route in app.routes:
        if isinstance(route, Route):
            for method in route.methods or ():
                yield method, re.sub(r"{[^}]*}", "x", route.path)
        else:  # FastAPI keeps routers that it includes as they are
            yield from routes_of(route.original_router)


@pytest.mark.parametrize("ui", [False, True])
def test_every_route_asks_for_a_key(ui: bool) -> None:
    """Threat: API key (CVE-2026-48746): whatever is added to the server, it is closed unless it is listed here."""
    with RunningServer(api_keys=("key",), ui=ui) as server:
        found = dict.fromkeys(routes_of(create_app(server.state)))
        taken = {path for method, path in found if server.client.request(method, path).status_code != 401}
    expected = {"/health", "/version", "/metrics"} | (set(PAGE_PATHS) if ui else set())
    assert taken == expected
    assert len(found) > len(expected) + 3


def test_every_key_is_compared_and_nothing_but_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threat: API key (CVE-2025-59425): the time that it takes tells neither which key is near nor how near."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(given: bytes, own: bytes) -> bool:
        compared.append((given, own))
        return given == own

    monkeypatch.setattr(middleware, "compare_digest", compare)
    with RunningServer(api_keys=("first", "second", "third")) as server:
        for key, status in (("first", 200), ("third", 200), ("f", 401), ("x" * 5000, 401)):
            compared.clear()
            answer = server.client.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == status
            assert [(len(given), len(own)) for given, own in compared] == [(32, 32)] * 3


@pytest.mark.parametrize("path", ["/health", "/version", "/metrics"])
def test_open_routes(guarded: RunningServer, path: str) -> None:
    assert guarded.client.get(path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("GET", "/v1/models"),
        ("GET", "/v1/models/org/fake-vl"),
        ("GET", "/openapi.json"),
        ("GET", "/nowhere"),
        ("GET", "/health/"),
        ("GET", "/health/../v1/models"),
        ("GET", "//health"),
        ("GET", "/HEALTH"),
        ("GET", "/v1/models?/health"),
        ("OPTIONS", "/v1/models"),
    ],
)
def test_other_routes(guarded: RunningServer, method: str, path: str) -> None:
    response = guarded.client.request(method, path)
    assert response.status_code == 401
    assert response.json()["error"]["type"] == "Unauthorized"
    assert response.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("target", [b"/v1/models", b"http://x/v1/models", b"/v1/models#/health"])
@pytest.mark.parametrize("host", [b"x/health?", b"x/health#", b"", b"/health"])
def test_the_host_header_opens_nothing(guarded: RunningServer, target: bytes, host: bytes) -> None:
    """Threat: API key (CVE-2026-48746, GHSA-94f4-hr76-p5j6)."""
    with guarded.connect() as sock:
        sock.sendall(b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 401 ")


@pytest.mark.parametrize(
    "header", ["first-key", "Basic first-key", "Bearer", "Bearer first-ke", "Bearer first-key x"]
)
def test_wrong_keys(guarded: RunningServer, header: str) -> None:
    assert guarded.client.get("/v1/models", headers={"authorization": header}).status_code == 401


@pytest.mark.parametrize("header", ["Bearer first-key", "bearer first-key", "Bearer  first-key"])
def test_right_keys(guarded: RunningServer, header: str) -> None:
    assert guarded.client.get("/v1/models", headers={"authorization": header}).status_code == 200


def test_a_key_beyond_ascii(guarded: RunningServer) -> None:
    headers = {b"authorization": "Bearer clé".encode()}
    assert guarded.client.get("/v1/models", headers=headers).status_code == 200


def test_openai_with_and_without_the_key(guarded: RunningServer) -> None:
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="first-key", max_retries=0) as client:
        assert client.models.list().data[0].id == "org/fake-vl"
    with (
        openai.OpenAI(base_url=f"{guarded.url}/v1", api_key="other", max_retries=0) as client,
        pytest.raises(openai.AuthenticationError, match="valid API key"),
    ):
        client.models.list()

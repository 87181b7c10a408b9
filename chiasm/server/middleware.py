"""What every request passes before it is routed. Plain ASGI: the handlers see the connection as it is."""

from __future__ import annotations

import hashlib
import re
import time
import uuid
from collections.abc import Sequence, Set
from hmac import compare_digest
from urllib.parse import quote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chiasm.logs import get_logger
from chiasm.server.errors import ErrorInfo, error_response
from chiasm.server.requests import REQUEST_ID

OPEN_PATHS = frozenset({"/health", "/version", "/metrics"})
"""What needs no key."""

_MAX_PATH = 200
_REQUEST_ID = re.compile(REQUEST_ID)

_logger = get_logger(__name__)


class RequestIds:
    """Names each request, by the client's ``X-Request-Id`` where it is harmless, or by what its body says.

    The answer has the name, and so has the log: a line for each request if ``logs``, and what fails in any case.
    """

    def __init__(self, app: ASGIApp, *, logs: bool) -> None:
        self._app = app
        self._logs = logs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        given = Headers(scope=scope).get("x-request-id", "")
        named = scope.setdefault("state", {})  # in which the body's reader may put another name
        named["request_id"] = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex

        start, status = time.perf_counter(), 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)["x-request-id"] = named["request_id"]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        except Exception:  # its client has been told by now
            _logger.exception("request %s failed", named["request_id"])
        if self._logs:
            # The path as it can't break the line; queries and bodies may hold secrets.
            line = (named["request_id"], scope["method"], quote(scope["path"][:_MAX_PATH]), status)
            _logger.info("request %s: %s %s, status %d, %.3f s", *line, time.perf_counter() - start)


class HeadRequests:
    """Answers HEAD as GET, but without a body: health checks ask so."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.start":
                await send(message)
                await send({"type": "http.response.body"})

        await self._app({**scope, "method": "GET"}, _nobody_reads_on, send_head)


async def _nobody_reads_on() -> Message:
    """Ends a stream of events that nobody will get."""
    return {"type": "http.disconnect"}


class ApiKeys:
    """Lets a request in that brings one of the keys; open paths need none. Handlers are told which key it was."""

    def __init__(self, app: ASGIApp, keys: Sequence[str], open_paths: Set[str]) -> None:
        self._app = app
        self._open_paths = open_paths
        self._digests = [_digest(key.encode()) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        # The path as routed, never one put together with the Host header: "Host: x/health?" must not open a door.
        key = self._known_key(dict(scope["headers"]).get(b"authorization", b""))
        if scope["path"] in self._open_paths or key is not None:
            scope.setdefault("state", {})["key"] = key
            await self._app(scope, receive, send)
            return
        info = ErrorInfo("A valid API key is needed: Authorization: Bearer KEY.", "Unauthorized", None, 401)
        await error_response(info, {"www-authenticate": "Bearer"})(scope, receive, send)

    def _known_key(self, authorization: bytes) -> str | None:
        """A name for the key that a request brings, if it is one of ours."""
        scheme, _, key = authorization.partition(b" ")
        given = _digest(key.strip())
        # Digests have one length and every key is compared: the time taken tells nothing of a key.
        matches = [compare_digest(given, digest) for digest in self._digests]
        return given.hex() if scheme.lower() == b"bearer" and any(matches) else None


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()

"""One streamed chat request over HTTP, and when its events came."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

import httpcore2
import msgspec

from chiasm.bench.serve.metrics import Outcome
from chiasm.errors import UserError, shorten

_OK = 200
_DATA = b"data:"
_DONE = b"[DONE]"
_MAX_ERROR = 2000  # bytes of a refusal that are kept
_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError)


class ChatClient:
    """Speaks to one server; a context, which closes its connections.

    Args:
        base_url: of the server, such as ``http://127.0.0.1:8000``.
        endpoint: path of the chat endpoint.
        headers: of every request.
        timeout: seconds without any byte after which a request has failed.
        verify: whether a TLS certificate must be valid.

    Raises:
        UserError: if the URL is none.
    """

    def __init__(
        self,
        base_url: str,
        endpoint: str = "/v1/chat/completions",
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 3600.0,
        verify: bool = True,
    ) -> None:
        parts = urlsplit(base_url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UserError(f"base_url must be an http(s) URL, got {shorten(base_url)}.", param="base_url")
        self.base_url = base_url.rstrip("/")
        self._url = self.base_url + endpoint
        self._headers = [(name, value) for name, value in (headers or {}).items()]
        limits = {"connect": timeout, "read": timeout, "write": timeout, "pool": None}
        self._extensions = {"timeout": limits}
        context = ssl.create_default_context()
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        # As many connections as requests: whoever limits them does so before the clock starts.
        self._pool = httpcore2.AsyncConnectionPool(context, max_connections=None, max_keepalive_connections=None)

    async def __aenter__(self) -> ChatClient:
        """Open."""
        return self

    async def __aexit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Close every connection."""
        await self._pool.aclose()

    async def get_json(self, path: str) -> Any:
        """What the server answers to a GET.

        Raises:
            UserError: if it doesn't answer, or not with JSON.
        """
        url = self.base_url + path
        try:
            response = await self._pool.request("GET", url, headers=self._headers, extensions=self._extensions)
        except _FAILURES as error:
            raise UserError(f"No answer from {url}: {type(error).__name__}.", param="base_url") from error
        if response.status != _OK:
            raise UserError(f"{url} answers with status {response.status}.", param="base_url")
        try:
            return msgspec.json.decode(response.content)
        except msgspec.DecodeError as error:
            raise UserError(f"{url} does not answer with JSON.", param="base_url") from error

    async def is_healthy(self) -> bool:
        """Whether ``/health`` says so."""
        try:
            response = await self._pool.request("GET", f"{self.base_url}/health", extensions=self._extensions)
        except _FAILURES:
            return False
        return response.status == _OK

    async def ask(self, body: bytes, request_id: str, outcome: Outcome) -> None:
        """Send a request and note in ``outcome`` what comes; a failure is noted too.

        Args:
            body: JSON of a streamed chat request.
            request_id: under which servers log it.
            outcome: to be filled.
        """
        headers = [*self._headers, ("Content-Type", "application/json"), ("X-Request-Id", request_id)]
        outcome.sent = time.perf_counter()
        try:
            call = self._pool.stream("POST", self._url, headers=headers, content=body, extensions=self._extensions)
            async with call as response:
                if response.status != _OK:
                    refusal = (await response.aread())[:_MAX_ERROR].decode(errors="replace")
                    outcome.error = f"status {response.status}: {refusal}"
                    return
                async with aclosing(_events(response.aiter_stream())) as events:
                    async for event in events:
                        _note(event, outcome)
        except _FAILURES as error:
            outcome.error = f"{type(error).__name__}: {error}"
        except msgspec.DecodeError as error:
            outcome.error = f"an event that is no JSON: {error}"
        if not outcome.error and not outcome.events:
            outcome.error = "no event with a choice"

    async def wait_until_ready(self, seconds: float) -> None:
        """Wait until the server is healthy.

        Raises:
            UserError: if it isn't after so many seconds.
        """
        deadline = time.monotonic() + seconds
        while not await self.is_healthy():
            if time.monotonic() >= deadline:
                raise UserError(f"No server is ready at {self.base_url} (chiasm serve starts one).", param="base_url")
            await asyncio.sleep(0.25)


async def _events(chunks: AsyncIterable[bytes]) -> AsyncGenerator[dict[str, Any]]:
    """Server-sent events as they are complete; comments and what follows the end are left out."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.removeprefix(_DATA).strip()
            if line.startswith(_DATA) and data != _DONE:
                yield msgspec.json.decode(data, type=dict[str, Any])


def _note(event: dict[str, Any], outcome: Outcome) -> None:
    if error := event.get("error"):
        outcome.error = f"broken off: {error}"
    if choices := event.get("choices"):
        outcome.events.append(time.perf_counter() - outcome.sent)
        delta = choices[0].get("delta") or {}
        outcome.text += delta.get("reasoning") or delta.get("reasoning_content") or ""
        outcome.text += delta.get("content") or ""
    if usage := event.get("usage"):
        outcome.prompt_tokens = usage.get("prompt_tokens") or 0
        outcome.completion_tokens = usage.get("completion_tokens")

"""One streamed chat request over HTTP, and when its events came."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterable, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Annotated, Any
from urllib.parse import urlsplit

import httpcore2
import msgspec

from chiasm.bench.serve.metrics import Outcome
from chiasm.errors import UserError, refuse, shorten

_OK = 200
_SERVER_ERROR = 500
_DATA = b"data:"
_DONE = b"[DONE]"
_MAX_ERROR = 2000  # bytes of a refusal that are kept
_HEALTH_SECONDS = 10.0  # for an answer that is ready at once, or the server isn't
_FAILURES = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError)


_Count = Annotated[int, msgspec.Meta(ge=0)]


class _Delta(msgspec.Struct):
    """What an event adds to the answer; servers have two names for reasoning."""

    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None

    @property
    def text(self) -> str:
        return (self.reasoning or self.reasoning_content or "") + (self.content or "")


class _Choice(msgspec.Struct):
    delta: _Delta | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: _Count | None = None
    completion_tokens: _Count | None = None


class _Event(msgspec.Struct):
    """What a benchmark reads of an event; everything else is skipped."""

    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: Any = None


class ChatClient:
    """Speaks to one server; a context, which closes its connections.

    Args:
        base_url: of the server, such as ``http://127.0.0.1:8000``.
        endpoint: path of the chat endpoint.
        headers: of every request.
        timeout: seconds without any byte after which a request has failed.
        verify: whether a TLS certificate must be valid.

    Raises:
        UserError: if the URL is none, or a header has other characters than ASCII.
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
        if not _is_url(base_url):
            raise UserError(f"base_url must be an http(s) URL, got {shorten(base_url)}.", param="base_url")
        if not endpoint.startswith("/") or not endpoint.isascii():
            refuse("endpoint", endpoint, "a path, which begins with /")
        for name, value in (headers or {}).items():
            if not (name + value).isascii() or not (name + value).isprintable():
                refuse("header", f"{name}={value}", "printable ASCII")
        self.base_url = base_url.rstrip("/").removesuffix("/v1")  # which OpenAI's clients write at its end
        self._url = self.base_url + endpoint
        self._headers = list((headers or {}).items())
        self._extensions = _limits(timeout)
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

    async def is_ready(self) -> bool:
        """Whether ``/health`` says so; a server that doesn't know the path is ready once it answers."""
        url = f"{self.base_url}/health"
        try:
            extensions = _limits(_HEALTH_SECONDS)
            response = await self._pool.request("GET", url, headers=self._headers, extensions=extensions)
        except _FAILURES:
            return False
        return response.status < _SERVER_ERROR

    async def ask(self, body: Mapping[str, Any], request_id: str, outcome: Outcome) -> None:
        """Send a request and note in ``outcome`` what comes; a failure is noted too.

        Args:
            body: of a streamed chat request; writing it as JSON counts as sending.
            request_id: under which servers log it.
            outcome: to be filled.
        """
        headers = [*self._headers, ("Content-Type", "application/json"), ("X-Request-Id", request_id)]
        outcome.sent = time.perf_counter()
        try:
            content = msgspec.json.encode(body)
            call = self._pool.stream("POST", self._url, headers=headers, content=content, extensions=self._extensions)
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
            outcome.error = f"an event that is none of a chat: {error}"
        if not outcome.error and not outcome.events:
            outcome.error = "no event with a choice"

    async def wait_until_ready(self, seconds: float) -> None:
        """Wait until the server is ready.

        Raises:
            UserError: if it isn't after so many seconds.
        """
        deadline = time.monotonic() + seconds
        while not await self.is_ready():
            if time.monotonic() >= deadline:
                raise UserError(f"No server is ready at {self.base_url} (chiasm serve starts one).", param="base_url")
            await asyncio.sleep(0.25)


async def _events(chunks: AsyncIterable[bytes]) -> AsyncGenerator[_Event]:
    """Server-sent events as they are complete; comments and what follows the end are left out."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            data = line.removeprefix(_DATA).strip()
            if line.startswith(_DATA) and data != _DONE:
                yield msgspec.json.decode(data, type=_Event)


def _note(event: _Event, outcome: Outcome) -> None:
    if event.error:
        outcome.error = f"broken off: {event.error}"
    if event.choices:
        outcome.events.append(time.perf_counter() - outcome.sent)
        delta = event.choices[0].delta
        text = delta.text if delta else ""
        outcome.num_texts += bool(text)
        outcome.text += text
    if event.usage:
        outcome.prompt_tokens = event.usage.prompt_tokens or 0
        outcome.completion_tokens = event.usage.completion_tokens


def _limits(seconds: float) -> dict[str, Any]:
    """Seconds for each step of a request; it may wait for a connection as long as it likes."""
    return {"timeout": {"connect": seconds, "read": seconds, "write": seconds, "pool": None}}


def _is_url(text: str) -> bool:
    """Whether it names an HTTP server, with a path at most."""
    try:
        parts = urlsplit(text)
        is_server = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port or an address that can't be
        return False
    return is_server and text.isascii() and " " not in text and not parts.query and not parts.fragment

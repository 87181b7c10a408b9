"""Server-sent events: a stream of JSON values, an error event where one fails, and a mark at the end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import NamedTuple

import msgspec
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from chiasm.logs import get_logger
from chiasm.server.errors import ClientGoneError, ErrorBody, ErrorInfo, describe, is_bug
from chiasm.server.interrupts import client_gone, run_unless, stop_asked, time_up

_logger = get_logger(__name__)
_encode = msgspec.json.Encoder().encode


class StreamForm(NamedTuple):
    """How a stream is written.

    Attributes:
        is_named: whether each event has the tag of its struct as its name.
        failed: makes the last event of a stream that breaks off.
        end: what comes last.
    """

    is_named: bool
    failed: Callable[[ErrorInfo], msgspec.Struct]
    end: bytes


CHUNKS = StreamForm(is_named=False, failed=ErrorBody, end=b"data: [DONE]\n\n")
"""As chats and completions are streamed."""


class EventStream(Response):
    """Sends events as they come and closes their generator whatever happens.

    Starlette's own streaming response leaves a generator that is not waiting to the garbage collector when the
    client goes; here its end, which aborts the engine's request, comes before the response's.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        first: msgspec.Struct,
        rest: AsyncGenerator[msgspec.Struct, None],
        stopping: asyncio.Event,
        form: StreamForm = CHUNKS,
    ) -> None:
        """Take a stream whose first event is there already: an error before it was answered with a status."""
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._stopping = stopping
        self._form = form

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send everything."""
        async with aclosing(self._rest):
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            time_is_up = time_up(scope["state"].get("deadline"))
            try:
                await run_unless(
                    self._send_events(send), client_gone(receive), stop_asked(self._stopping), time_is_up
                )
            except ClientGoneError:
                return
            except Exception as error:
                await self._rest.aclose()  # before anything is sent to a client that may not read
                if is_bug(error):
                    _logger.exception("the stream of request %s failed", scope["state"]["request_id"])
                await send(self._event(self._form.failed(describe(error))))
        await send({"type": "http.response.body", "body": self._form.end})

    async def _send_events(self, send: Send) -> None:
        await send(self._event(self._first))
        async for event in self._rest:
            await send(self._event(event))

    def _event(self, value: msgspec.Struct) -> Message:
        name = f"event: {value.__struct_config__.tag}\n".encode() if self._form.is_named else b""
        return {"type": "http.response.body", "body": name + b"data: " + _encode(value) + b"\n\n", "more_body": True}

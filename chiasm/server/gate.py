"""What a request with a body passes before a handler reads it: is there room, and how long may it take?"""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chiasm.errors import OverloadedError
from chiasm.server.admission import HeldBody
from chiasm.server.errors import EngineSilentError, RequestTimeoutError, StoppingError, error_answer
from chiasm.server.interrupts import Deadline
from chiasm.server.state import ServerState


class Gate:
    """Refuses what the server can't take on while its body is still in the network, and counts what it takes.

    A handler finds its ``Deadline`` in ``scope["state"]["deadline"]``; None where there is no limit.
    """

    def __init__(self, app: ASGIApp, state: ServerState) -> None:
        self._app = app
        self._state = state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        if self._state.draining.is_set():
            await error_answer(StoppingError())(scope, receive, send)
            return
        if not self._state.engine.is_alive:
            await error_answer(EngineSilentError())(scope, receive, send)
            return
        limits = self._state.config
        declared = _declared_bytes(scope)
        try:
            # A body that is too large by itself is refused as such, and never read.
            with self._state.admission.request(declared if declared <= limits.max_body_bytes else 0) as body:
                deadline = _deadline(limits.request_timeout)
                scope["state"]["deadline"] = deadline
                await self._app(scope, _BoundedBody(receive, body, deadline, self._state), send)
        except OverloadedError as error:
            self._state.metrics.count_rejection(error)
            await error_answer(error)(scope, receive, send)


class _BoundedBody:
    """Receives a body within its bounds of memory, and of time where there is a deadline.

    Args:
        receive: what brings it.
        held: counts it.
        deadline: of the whole request.
        state: of the server.
    """

    def __init__(self, receive: Receive, held: HeldBody, deadline: Deadline | None, state: ServerState) -> None:
        self._receive = receive
        self._held = held
        self._deadline = deadline
        self._state = state
        self._is_whole = False

    async def __call__(self) -> Message:
        """The next message."""
        if self._is_whole:
            return await self._receive()
        message = await self._in_time()
        if message["type"] == "http.request":
            self._count(message.get("body", b""))
            self._is_whole = not message.get("more_body", False)
        return message

    async def _in_time(self) -> Message:
        if self._deadline is None:
            return await self._receive()
        try:
            async with asyncio.timeout_at(self._deadline.at):
                return await self._receive()
        except TimeoutError:
            raise RequestTimeoutError(self._deadline.seconds) from None

    def _count(self, piece: bytes) -> None:
        try:
            self._held.grow(piece)
        except OverloadedError as error:
            self._state.metrics.count_rejection(error)
            raise


def _deadline(timeout: float | None) -> Deadline | None:
    return None if timeout is None else Deadline(asyncio.get_running_loop().time() + timeout, timeout)


def _declared_bytes(scope: Scope) -> int:
    text = Headers(scope=scope).get("content-length", "")
    return int(text[:20]) if text.isdecimal() else 0

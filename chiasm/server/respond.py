"""The last step of all endpoints that answer: one JSON body, or a stream of events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from chiasm.errors import OverloadedError
from chiasm.server.answers import Collected, collect
from chiasm.server.bodies import json_response
from chiasm.server.generation import Outputs
from chiasm.server.interrupts import client_gone, run_unless, stop_asked, time_up
from chiasm.server.sse import CHUNKS, EventStream, StreamForm
from chiasm.server.state import ServerState

Events = AsyncGenerator[msgspec.Struct, None]


async def respond(state: ServerState, http: Request, work: Coroutine[Any, Any, Response]) -> Response:
    """Do ``work`` for as long as its client waits for it.

    Raises:
        ClientGoneError: the client left.
        StoppingError: the server stopped waiting.
        RequestTimeoutError: it took too long.
    """
    time_is_up = time_up(http.scope["state"].get("deadline"))
    try:
        return await run_unless(work, client_gone(http.receive), stop_asked(state.stopping), time_is_up)
    except OverloadedError as error:
        state.metrics.count_rejection(error)
        raise


async def whole(outputs: Outputs, make: Callable[[Collected], msgspec.Struct]) -> Response:
    """Wait for all answers and send the body that ``make`` forms of them."""
    return json_response(make(await collect(outputs)))


async def stream(state: ServerState, events: Events, form: StreamForm = CHUNKS) -> Response:
    """Send events as they come. The response starts with the first one: an error before it has its own status."""
    return EventStream(await anext(events), events, state.stopping, form)

"""Giving up work whose result nobody will read, or for which there is no time left."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, NamedTuple, Never, TypeVar

from starlette.types import Receive

from chiasm.server.errors import ClientGoneError, RequestTimeoutError, StoppingError

T = TypeVar("T")


async def run_unless(work: Coroutine[Any, Any, T], *interrupts: Coroutine[Any, Any, Never]) -> T:
    """Run ``work``; when an interrupt raises first, cancel it, wait for its clean-up, and raise the same."""
    tasks: list[asyncio.Task[T]] = [asyncio.ensure_future(each) for each in (work, *interrupts)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return next(task for task in tasks if task.done()).result()
    finally:
        for each in tasks:
            each.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # The traceback of what is raised holds this frame: where the frame held the task that raised it, a request
        # and all that it brought would stay until the garbage collector finds the circle.
        del tasks, each


async def client_gone(receive: Receive) -> Never:
    """Raise when the client closes its connection, once its body has been read.

    This waits on ``receive`` itself: asking now and then whether the client is there would notice late, and fails
    behind middleware.

    Raises:
        ClientGoneError: then.
    """
    while (await receive())["type"] != "http.disconnect":
        continue
    raise ClientGoneError


async def stop_asked(stopping: asyncio.Event) -> Never:
    """Raise when ``stopping`` is set.

    Raises:
        StoppingError: then.
    """
    await stopping.wait()
    raise StoppingError


class Deadline(NamedTuple):
    """When a request must be done.

    Attributes:
        at: then, by the loop's clock.
        seconds: that it has from its arrival on.
    """

    at: float
    seconds: float


async def time_up(deadline: Deadline | None) -> Never:
    """Raise when a request has had its time; None is never.

    Raises:
        RequestTimeoutError: then.
    """
    if deadline is None:
        await asyncio.Event().wait()
    else:
        await asyncio.sleep(deadline.at - asyncio.get_running_loop().time())
        raise RequestTimeoutError(deadline.seconds)
    raise AssertionError("unreachable")

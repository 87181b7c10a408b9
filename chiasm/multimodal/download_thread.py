"""One thread in which all downloads run, on an event loop of their own.

HTTP is parsed in Python, and how much of it comes at a time is the remote host's choice. On the server's event loop
every other request would wait for that; here they wait for the interpreter's lock, for a few milliseconds.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


async def run_in_download_thread(work: Coroutine[Any, Any, Result]) -> Result:
    """Await ``work`` in the thread of downloads.

    If the caller is cancelled, so is ``work``; the caller does not wait for its end.

    Raises:
        Exception: whatever ``work`` raises.
    """
    outcome = await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_settled(work), _loop()))
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


async def _settled(work: Coroutine[Any, Any, Result]) -> Result | Exception:
    # As a value: of an error that nobody waits for any more, the loop would log a traceback.
    try:
        return await work
    except Exception as error:
        return error


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    loop = asyncio.new_event_loop()
    # A daemon: a server that ends does not wait for a download.
    threading.Thread(target=loop.run_forever, name="downloads", daemon=True).start()
    return loop

"""Looking up host names in threads of their own.

An event loop's own threads are few and shared, and a name server that does not answer keeps one for as long as the
system waits, whether or not somebody still does: some such names in requests would stop all others.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import ip_address

from chiasm.errors import OverloadedError
from chiasm.multimodal.addresses import IPAddress

Resolver = Callable[[str, int], Awaitable[Sequence[IPAddress]]]

_MAX_LOOKUPS = 256  # at a time, those that nobody waits for any more among them


class SystemResolver:
    """Asks the system. Used from one event loop."""

    def __init__(self) -> None:
        self._num_lookups = 0

    async def __call__(self, host: str, port: int) -> Sequence[IPAddress]:
        """The addresses of a host name.

        Raises:
            OSError: if it has none.
            OverloadedError: if too many lookups have not ended.
        """
        if self._num_lookups >= _MAX_LOOKUPS:
            raise OverloadedError("Too many hosts of media are being looked up.")
        loop = asyncio.get_running_loop()
        found: asyncio.Future[Sequence[IPAddress]] = loop.create_future()
        self._num_lookups += 1

        def settle(outcome: Sequence[IPAddress] | OSError) -> None:
            self._num_lookups -= 1
            if found.done():  # nobody waits any more
                return
            if isinstance(outcome, OSError):
                found.set_exception(outcome)
            else:
                found.set_result(outcome)

        def look_up() -> None:
            outcome = _look_up(host, port)
            if not loop.is_closed():
                loop.call_soon_threadsafe(settle, outcome)

        # Daemons: a server that ends does not wait for a name server.
        threading.Thread(target=look_up, name="resolver", daemon=True).start()
        return await found


def _look_up(host: str, port: int) -> Sequence[IPAddress] | OSError:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError as error:
        return error
    except UnicodeError as error:  # a label that the system's own encoding of names refuses
        return OSError(str(error))
    return [ip_address(entry[4][0]) for entry in found]

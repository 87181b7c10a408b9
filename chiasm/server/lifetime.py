"""When a server ends: on signals, and with its engine."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from types import TracebackType
from typing import Never

import uvicorn

from chiasm.logs import get_logger
from chiasm.server.errors import StoppingError
from chiasm.server.state import ServerState

_DEATH_GRACE = 1.0  # seconds in which requests of a dead engine get their errors
_ABORT_GRACE = 2.0  # seconds in which aborted requests get theirs
_CLOSE_GRACE = 1.0  # seconds in which connections are closed

_logger = get_logger(__name__)


class Signals:
    """SIGINT and SIGTERM as events; a context that holds their handlers.

    Attributes:
        first: somebody asked to stop.
        second: somebody insisted.
    """

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()

    def __enter__(self) -> Signals:
        """Take the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._on_signal)
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        """Give them back."""
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().remove_signal_handler(number)

    def _on_signal(self) -> None:
        (self.second if self.first.is_set() else self.first).set()


class Lifetime:
    """The end of one server: it drains, then aborts, then leaves.

    Attributes:
        exit_status: for the process: 0 after a signal, 1 when the engine died.
    """

    def __init__(self, server: uvicorn.Server, state: ServerState, signals: Signals) -> None:
        self.exit_status = 0
        self._server = server
        self._state = state
        self._signals = signals

    async def end(self) -> Never:
        """Wait for a reason to stop, then stop the server step by step.

        A server whose requests end in time returns by itself before this does.

        Raises:
            StoppingError: when all patience is used up.
        """
        patience = await self._wait_for_reason()
        # It goes on listening meanwhile: who asks after its health, or for an answer, shall hear that it is leaving.
        self._state.draining.set()
        await self._wait_until_idle(patience)
        self._state.stopping.set()
        self._server.should_exit = True
        await self._wait_until_idle(_ABORT_GRACE)
        await self._wait_unless_insisted(_CLOSE_GRACE)
        raise StoppingError

    async def _wait_for_reason(self) -> float:
        """Returns the seconds that running requests get."""
        dead = asyncio.ensure_future(self._state.engine.wait_dead())
        asked = asyncio.ensure_future(self._signals.first.wait())
        try:
            await asyncio.wait([dead, asked], return_when=asyncio.FIRST_COMPLETED)
        finally:
            asked.cancel()
            dead.cancel()
        if not dead.done():
            _logger.info("Stopping: running requests get %g s.", self._state.config.shutdown_timeout)
            return self._state.config.shutdown_timeout
        self.exit_status = 1
        _logger.error("The engine has died: %s", dead.result())
        return _DEATH_GRACE

    async def _wait_until_idle(self, seconds: float) -> None:
        """Wait for running requests to end, for so long, or until somebody insists."""
        idle = asyncio.ensure_future(self._state.admission.wait_idle())
        insisted = asyncio.ensure_future(self._signals.second.wait())
        try:
            await asyncio.wait([idle, insisted], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            idle.cancel()
            insisted.cancel()

    async def _wait_unless_insisted(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._signals.second.wait()

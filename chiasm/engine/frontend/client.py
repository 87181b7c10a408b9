"""The frontend's end of the channel to a core in another process."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq
import zmq.asyncio

from chiasm.config.engine import EngineConfig
from chiasm.dist.channel import join_channel
from chiasm.dist.children import Child, start_child
from chiasm.errors import EngineDeadError, UserError
from chiasm.logs import get_logger
from chiasm.schema.output import EngineStats, SequenceDelta
from chiasm.schema.profile import EngineProfile
from chiasm.schema.request import EngineRequest
from chiasm.schema.steps import EncoderBegan, StepNews, StepsEnded
from chiasm.schema.wire import (
    AbortRequests,
    AddRequest,
    Failed,
    FromCore,
    Outputs,
    ProfileFailed,
    ProfileStarted,
    ProfileTaken,
    Ready,
    Shutdown,
    StartCore,
    StartProfile,
    StopProfile,
    ToCore,
    WatchSteps,
)

_log = get_logger(__name__)
_POLL_SECONDS = 0.25
_STOP_SECONDS = 5.0
# The core tells of itself every second and after every step. One that has said nothing for this long, and for this
# many times longer than ever before, is stuck: sooner known than by step_timeout, which must be enough for any step.
_QUIET_SECONDS = 60.0
_QUIET_TIMES = 10
# So much longer than step_timeout a core may be silent: of a rank that hangs it tells itself by then.
_LAST_WORD_SECONDS = 5.0
_ProfileReply = ProfileStarted | ProfileTaken


class CoreClient:
    """Starts a core process and talks to it from an event loop.

    Args:
        runtime_dir: the engine's private folder.

    Attributes:
        stats: the core's latest.
        death: why the core has ended; None while it lives.
    """

    def __init__(self, runtime_dir: Path) -> None:
        self._runtime_dir = runtime_dir
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket = self._context.socket(zmq.PAIR)
        join_channel(self._socket, runtime_dir, "core", is_binding=True)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[FromCore] = msgspec.msgpack.Decoder(FromCore)
        self._child: Child | None = None
        self._listeners: dict[str, Callable[[SequenceDelta], None]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._profiling: deque[asyncio.Future[_ProfileReply]] = deque()
        self._died = asyncio.Event()
        self._rank_pids: tuple[int, ...] = ()
        self._watcher: Callable[[StepNews], None] | None = None
        self._heard = time.monotonic()
        self._longest_quiet = 0.0
        self._step_timeout = math.inf
        self.stats = EngineStats()
        self.death: str | None = None

    @property
    def is_stuck(self) -> bool:
        """Whether the core has said nothing for much longer than ever before."""
        patience = min(self._step_timeout, max(_QUIET_SECONDS, _QUIET_TIMES * self._longest_quiet))
        return time.monotonic() - self._heard > patience

    async def start(self, config: EngineConfig) -> Ready:
        """Start the core and wait until it serves.

        Raises:
            UserError: if the model or a setting is at fault.
            EngineDeadError: if it could not start for another reason.
        """
        self._child = start_child("chiasm.engine.core.main", [str(self._runtime_dir)], runtime_dir=self._runtime_dir,
                                  name="core")  # fmt: skip
        await self._send(StartCore(config))
        message = await self._receive()
        if isinstance(message, Failed):
            self.death = message.message
            raise UserError(message.message) if message.is_user_error else EngineDeadError(message.message)
        assert isinstance(message, Ready), message
        self._rank_pids = message.rank_pids
        self._step_timeout = config.step_timeout
        self._heard = time.monotonic()
        self._reading = asyncio.create_task(self._read())
        return message

    async def add(self, request: EngineRequest, listener: Callable[[SequenceDelta], None]) -> None:
        """Send a sequence; ``listener`` is called with each of its deltas, in this event loop, until its last one."""
        self._check()
        self._listeners[request.request_id] = listener
        try:
            await self._send(AddRequest(request))
        except BaseException:
            self._listeners.pop(request.request_id, None)
            raise

    async def abort(self, request_ids: tuple[str, ...]) -> None:
        """Have the core forget sequences; their last delta still comes."""
        if self.death is None and request_ids:
            with contextlib.suppress(EngineDeadError):  # it has forgotten them already
                await self._send(AbortRequests(request_ids))

    async def start_profile(self) -> None:
        """Have the ranks record what they compute; returns once all do.

        Raises:
            UserError: if they do so already.
        """
        await self._profile(StartProfile())

    async def stop_profile(self, folder: Path) -> EngineProfile:
        """End that; each rank writes a file into a folder.

        Raises:
            UserError: if they don't record, or can't write.
        """
        reply = await self._profile(StopProfile(str(folder)))
        assert isinstance(reply, ProfileTaken), reply
        return reply.profile

    async def _profile(self, message: StartProfile | StopProfile) -> _ProfileReply:
        self._check()
        reply: asyncio.Future[_ProfileReply] = asyncio.get_running_loop().create_future()
        self._profiling.append(reply)
        await self._send(message)
        return await reply

    async def watch(self, watcher: Callable[[StepNews], None] | None) -> None:
        """Have the core tell ``watcher`` of its steps, in this event loop; None ends that."""
        self._watcher = watcher
        if self.death is None and not self._socket.closed:
            with contextlib.suppress(EngineDeadError):
                await self._send(WatchSteps(watcher is not None))

    async def wait_dead(self) -> str:
        """Wait until the core has ended by itself; returns why."""
        await self._died.wait()
        assert self.death is not None
        return self.death

    async def close(self) -> None:
        """Stop the core and its ranks: asked, if it serves; at once, if it is still loading or has ended.

        Requests in flight are told so. A second call does nothing.
        """
        if self._socket.closed:
            return
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
        if self.death is None:
            self._tell_listeners("the engine was shut down.")
        if self._child is not None:
            if reading is not None:
                await self._ask_to_end(self._child)
            self._child.stop(grace=0.5)
            self._kill_ranks_left_by(self._child)
        self._socket.close()
        self._context.term()

    def _kill_ranks_left_by(self, core: Child) -> None:
        """A core that had to be killed leaves its ranks to see for themselves, which one that is stuck does not."""
        if core.poll() != 0:
            for pid in set(self._rank_pids) - {core.pid}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    async def _ask_to_end(self, child: Child) -> None:
        # Not _send: a core that is ending has no ear any more.
        with contextlib.suppress(zmq.Again):
            await self._socket.send(self._encoder.encode(Shutdown()), zmq.NOBLOCK)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                # Not in a thread, of which there are no new ones when the interpreter is ending.
                while child.poll() is None:  # noqa: ASYNC110  # a process has no event to wait for
                    await asyncio.sleep(0.01)

    async def _read(self) -> None:
        while self.death is None:
            try:
                self._take(await self._receive())
            except Exception:  # whoever waits must hear of it, or they would wait for ever
                _log.exception("reading from the core fails")
                self._mark_dead("its messages can't be read; the server's log has the reason.")

    def _take(self, message: FromCore) -> None:
        if isinstance(message, Outputs):
            now = time.monotonic()
            self._longest_quiet, self._heard = max(self._longest_quiet, now - self._heard), now
            self.stats = message.stats
            for delta in message.deltas:
                self._deliver(delta)
        elif isinstance(message, ProfileStarted | ProfileTaken | ProfileFailed):
            self._take_profile(message)
        elif isinstance(message, EncoderBegan | StepsEnded):
            if self._watcher is not None:
                self._watcher(message)
        elif isinstance(message, Failed):
            self._mark_dead(message.message)

    def _take_profile(self, message: _ProfileReply | ProfileFailed) -> None:
        reply = self._profiling.popleft()
        if reply.done():  # whoever asked has gone
            return
        if isinstance(message, ProfileFailed):
            reply.set_exception(UserError(message.message, param="profile"))
        else:
            reply.set_result(message)

    def _deliver(self, delta: SequenceDelta) -> None:
        is_last = delta.finish_reason is not None
        listener = self._listeners.pop(delta.request_id) if is_last else self._listeners[delta.request_id]
        listener(delta)

    async def _receive(self) -> FromCore:
        """The next message; that a core has ended without a word, or says none any more, counts as one."""
        num_polls = 0  # not the clock, which runs on while both processes are stopped
        while not await self._socket.poll(int(_POLL_SECONDS * 1000)):
            assert self._child is not None
            status = self._child.poll()
            if status is not None and not await self._socket.poll(0):
                return Failed(f"the engine's core has ended with status {status}.")
            num_polls += 1
            if num_polls * _POLL_SECONDS > self._step_timeout + _LAST_WORD_SECONDS:
                self._child.kill()  # it would not hear anything else, and must not come back
                silence = f"longer than a step may take, {self._step_timeout:g} s (step_timeout)"
                return Failed(f"the engine's core has said nothing for {silence}.")
        return self._decoder.decode(await self._socket.recv())

    def _mark_dead(self, message: str) -> None:
        """The core has ended by itself: tell everybody who waits."""
        self._died.set()
        self._tell_listeners(message)

    def _tell_listeners(self, message: str) -> None:
        self.death = message
        for reply in self._profiling:
            if not reply.done():
                reply.set_exception(EngineDeadError(f"the engine has stopped: {message}"))
        listeners, self._listeners = self._listeners, {}
        for request_id, listener in listeners.items():
            try:
                listener(SequenceDelta(request_id, finish_reason="abort"))
            except Exception:
                _log.exception("telling a request of the core's death fails")

    async def _send(self, message: ToCore) -> None:
        """Send to the core, waiting for it to connect at first.

        Raises:
            EngineDeadError: if the core has ended and will never read it.
        """
        data = self._encoder.encode(message)
        while True:
            try:
                await self._socket.send(data, zmq.NOBLOCK)
            except zmq.Again:
                assert self._child is not None
                status = self._child.poll()
                if status is not None:
                    raise EngineDeadError(f"the engine's core has ended with status {status}.") from None
                await self._socket.poll(int(_POLL_SECONDS * 1000), zmq.POLLOUT)  # type: ignore[call-arg]  # stub
            else:
                return

    def _check(self) -> None:
        if self.death is not None:
            raise EngineDeadError(f"the engine has stopped: {self.death}")

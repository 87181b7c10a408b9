"""A process for work that may take too long, too much memory or the process itself: it is replaced then."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec
import zmq
import zmq.asyncio

from chiasm.dist.channel import join_channel
from chiasm.dist.children import Child, harmless_variables, start_child

_START_SECONDS = 120.0
_POLL_MS = 50

Reply = TypeVar("Reply")


class WorkerStartError(RuntimeError):
    """The process can't be started; its log says why."""


class BoundedWorker(Generic[Reply]):
    """Asks a process one thing after the other; it starts with the first.

    Args:
        module: that the process runs. It joins the channel, sends a reply when it is ready, and one to each message.
        name: of the process, for messages; and of the channel, with dashes.
        args: of the process, behind the runtime folder.
        runtime_dir: the engine's private folder.
        reply: type of the replies.
    """

    def __init__(self, module: str, name: str, args: Sequence[str], runtime_dir: Path, reply: type[Reply]) -> None:
        self._module = module
        self._name = name
        self._args = [str(runtime_dir), *args]
        self._runtime_dir = runtime_dir
        self._turn = asyncio.Lock()
        self._decoder = msgspec.msgpack.Decoder(reply)
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._child: Child | None = None

    async def ask(self, message: msgspec.Struct, seconds: float) -> Reply:
        """The reply to a message.

        Args:
            message: of the type that the process expects.
            seconds: that the process gets, once it is its turn.

        Raises:
            TimeoutError: if they are over.
            ChildProcessError: if the process ends.
            WorkerStartError: if there is no process to ask.
        """
        data = msgspec.msgpack.encode(message)
        async with self._turn:
            try:
                if self._socket is None:
                    await self._begin()
                assert self._socket is not None
                await self._socket.send(data)
                return await self._receive(seconds)
            except BaseException:
                self._stop()  # a reply still to come would be taken for the next one's
                raise

    async def close(self) -> None:
        """End the process. A second call does nothing."""
        self._stop()
        self._context.term()

    async def _begin(self) -> None:
        """Start the process and wait until it is ready."""
        self._socket = self._context.socket(zmq.PAIR)
        join_channel(self._socket, self._runtime_dir, channel_name(self._name), is_binding=True)
        self._child = start_child(
            self._module,
            self._args,
            runtime_dir=self._runtime_dir,
            name=self._name,
            inherited=harmless_variables(),
        )
        try:
            await self._receive(_START_SECONDS)
        except (TimeoutError, ChildProcessError) as error:
            raise WorkerStartError(f"the {self._name} can't be started.") from error

    async def _receive(self, seconds: float) -> Reply:
        assert self._socket is not None
        assert self._child is not None
        async with asyncio.timeout(seconds):
            while not await self._socket.poll(_POLL_MS):
                status = self._child.poll()
                if status is not None:
                    raise ChildProcessError(f"the {self._name} has ended with status {status}")
            return self._decoder.decode(await self._socket.recv())

    def _stop(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        if self._child is not None:
            self._child.kill()
            self._child.wait()
            self._child = None


def channel_name(name: str) -> str:
    """The channel of a process of that name."""
    return name.replace(" ", "-")

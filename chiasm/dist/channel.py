"""Typed messages between an engine's processes: msgpack over Unix sockets in the private runtime folder.

Never pickle: bytes from another process are decoded against a schema or refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import zmq

Received = TypeVar("Received")
_POLL_MS = 100


class Channel(Generic[Received]):
    """One end of a two-way channel between two processes.

    Args:
        runtime_dir: the engine's private folder.
        name: of the channel; both ends give the same.
        received: the type (a tagged union of structs) of what arrives at this end.
        is_binding: True at exactly one end.
    """

    def __init__(self, runtime_dir: Path, name: str, received: Any, *, is_binding: bool) -> None:
        self._context = zmq.Context()
        self.socket: zmq.Socket[bytes] = self._context.socket(zmq.PAIR)
        join_channel(self.socket, runtime_dir, name, is_binding=is_binding)
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Received] = msgspec.msgpack.Decoder(received)

    def offer(self, message: msgspec.Struct) -> bool:
        """Queue a message if there is a process at the other end; returns whether there was."""
        try:
            self.socket.send(self._encoder.encode(message), zmq.NOBLOCK)
        except zmq.Again:
            return False
        return True

    def send(self, message: msgspec.Struct, check: Callable[[], object] = lambda: None) -> None:
        """Queue a message, once there is a process at the other end.

        Args:
            message: of the type that the other end expects.
            check: called while nobody is there; raises if nobody will ever be.
        """
        while not self.offer(message):
            check()
            self.socket.poll(_POLL_MS, zmq.POLLOUT)

    def receive(self, timeout: float | None = None) -> Received | None:
        """The next message, or None if there is none within ``timeout`` seconds (None waits for ever)."""
        if not self.socket.poll(None if timeout is None else int(timeout * 1000)):
            return None
        return self._decoder.decode(self.socket.recv())

    def await_threads(self) -> None:
        """Return once all of ZeroMQ's threads run; call it after ``receive``, and before a sandbox is entered.

        Each sets its own priority as it begins, which a sandbox refuses, and ZeroMQ ends the process where that
        fails. What has received runs; the other is the one that ends sockets, and frees their addresses.
        """
        for _ in range(2):
            with self._context.socket(zmq.PAIR) as socket:
                while not _has_bound(socket, "inproc://await-threads"):
                    time.sleep(0.001)

    def close(self) -> None:
        """Close this end; what was sent goes out first."""
        self.socket.close()
        self._context.term()


def _has_bound(socket: zmq.Socket[Any], address: str) -> bool:
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        if error.errno != zmq.EADDRINUSE:
            raise
        return False
    return True


def join_channel(socket: zmq.Socket[Any], runtime_dir: Path, name: str, *, is_binding: bool) -> None:
    """Make a PAIR socket, one end of a channel; it queues without a limit and closes within 0.2 s."""
    socket.setsockopt(zmq.LINGER, 200)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    address = f"ipc://{runtime_dir / name}.sock"
    if is_binding:
        socket.bind(address)
    else:
        socket.connect(address)

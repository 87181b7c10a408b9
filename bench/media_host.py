"""A host of media on the loopback address that misbehaves as hosts do, for servers that admit it by name."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

_CLOSED_AFTER = 120.0  # seconds in which a client that waits is kept waiting


class MediaHost:
    """Serves while the context is open.

    ``/picture`` is a good one; ``/missing`` is a 404; ``/silent`` never answers; ``/drip`` sends a byte now and then;
    ``/endless`` never ends; ``/short`` says more than it sends; ``/garbage`` is no picture; ``/loop`` redirects to
    itself.

    Attributes:
        address: host and port.
    """

    def __init__(self, picture: bytes) -> None:
        self._picture = picture
        self._serving: set[asyncio.Task[None]] = set()
        self.address = ""

    async def __aenter__(self) -> MediaHost:
        """Begin to listen."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = f"{host}:{port}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End, with those who still wait."""
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    def url(self, name: str) -> str:
        """Of one of the paths."""
        return f"http://{self.address}/{name}"

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
                async with asyncio.timeout(_CLOSED_AFTER):
                    head = await reader.readuntil(b"\r\n\r\n")
                    await self._answer(head.split()[1].decode().removeprefix("/"), writer)
        finally:
            writer.close()

    async def _answer(self, name: str, writer: asyncio.StreamWriter) -> None:
        ok = b"HTTP/1.1 200 OK\r\nContent-Type: image/png\r\nConnection: close\r\n"
        whole = ok + b"Content-Length: %d\r\n\r\n"
        if name == "picture":
            writer.write(whole % len(self._picture) + self._picture)
        elif name == "garbage":
            writer.write(whole % 5 + b"hello")
        elif name == "short":
            writer.write(whole % 100_000 + self._picture)
        elif name == "loop":
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /loop\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        elif name == "endless":
            writer.write(ok + b"\r\n")
            await _repeat(writer, self._picture * 100, 0)
        elif name == "drip":
            writer.write(whole % 100_000)
            await _repeat(writer, b"x", 0.2)
        elif name == "silent":
            await asyncio.sleep(_CLOSED_AFTER)
        else:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()


async def _repeat(writer: asyncio.StreamWriter, data: bytes, seconds: float) -> None:
    while not writer.transport.is_closing():
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(seconds)

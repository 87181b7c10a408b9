"""HTTP over plain connections, which may be broken off at any byte, in an event loop."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

_PIECE = 64 * 2**10


class Response(NamedTuple):
    """What came back.

    Attributes:
        status: 0 if the server closed the connection without any.
        headers: by lower-case name.
        body: chunks joined.
    """

    status: int
    headers: dict[str, str]
    body: bytes


class Target(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    @classmethod
    def of(cls, url: str) -> Target:
        """From ``http://HOST:PORT``."""
        host, _, port = url.removeprefix("http://").rpartition(":")
        return cls(host.strip("[]"), int(port))


def post(path: str, body: bytes, headers: Sequence[str] = ("Content-Type: application/json",)) -> bytes:
    """The bytes of a request whose answer ends with its connection."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def post_json(path: str, value: Any) -> bytes:
    """The bytes of a request with a JSON body."""
    return post(path, json.dumps(value).encode())


async def exchange(target: Target, request: bytes, seconds: float) -> Response:
    """Send everything and read everything.

    Raises:
        TimeoutError: if it takes longer.
    """
    async with asyncio.timeout(seconds):
        reader, writer = await asyncio.open_connection(*target)
        try:
            with suppress(ConnectionError):  # a server that refuses a body may close before it has read it
                writer.write(request)
                await writer.drain()
            return parse(await _read_all(reader))
        finally:
            writer.close()


async def get(target: Target, path: str, seconds: float = 60) -> Response:
    """Ask for something."""
    return await exchange(target, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode(), seconds)


async def leave(target: Target, request: bytes, rng: random.Random, patience: float) -> None:
    """Go away at a random moment: while the request is sent, while nothing comes yet, or in the answer."""
    _, writer = pair = await asyncio.open_connection(*target)
    try:
        with suppress(ConnectionError, TimeoutError):
            async with asyncio.timeout(patience):
                await _begin(*pair, request, rng, patience)
    finally:
        writer.transport.abort() if rng.random() < 0.5 else writer.close()


async def _begin(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes, rng: random.Random, patience: float
) -> None:
    stage = rng.choice(("sending", "waiting", "reading"))
    writer.write(request[: rng.randrange(len(request))] if stage == "sending" else request)
    await writer.drain()
    if stage == "reading":
        await reader.read(_PIECE)
    await asyncio.sleep(rng.random() ** 3 * patience)  # mostly soon


def parse(data: bytes) -> Response:
    """A response that ended with its connection."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    if not first.startswith("HTTP/1.1 "):
        return Response(0, {}, data)
    pairs = (line.partition(":") for line in lines)
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding") == "chunked":
        body = _unchunk(body)
    return Response(int(first.split()[1]), headers, body)


def events(body: bytes) -> list[Any]:
    """The JSON events of a stream.

    Raises:
        ValueError: if it has no end.
    """
    *pieces, last, rest = body.split(b"\n\n")
    if last != b"data: [DONE]" or rest:
        raise ValueError(f"the stream ends with {(last + rest)[-100:]!r}")
    return [json.loads(piece.removeprefix(b"data: ")) for piece in pieces]


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    data = bytearray()
    with suppress(ConnectionError):
        while piece := await reader.read(_PIECE):
            data += piece
    return bytes(data)


def _unchunk(body: bytes) -> bytes:
    pieces = []
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        pieces.append(body[:length])
        body = body[length + 2 :]
    return b"".join(pieces)

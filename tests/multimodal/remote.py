"""A media host for tests: a scripted server on an ephemeral port, and a network that leads every address to it."""

from __future__ import annotations

import asyncio
import contextlib
from ipaddress import ip_address

import httpcore2

from chiasm.config.engine import MediaConfig
from chiasm.multimodal.fetch import MediaFetcher
from tests.clocks import PATIENCE

PUBLIC = "93.184.215.14"


def answer(body=b"picture", status="200 OK", headers=()):
    """The bytes of a plain HTTP answer."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def redirect(location, status="302 Found"):
    """The bytes of a redirect."""
    return answer(b"", status, [f"Location: {location}"])


class Host:
    """Answers each request by ``script``: bytes, or a function that is given the writer.

    Attributes:
        requests: the head of every request.
        connections: how many were opened.
        port: where it listens, on loopback.
    """

    def __init__(self, *script):
        self.script = list(script)
        self.requests = []
        self.connections = 0
        self.port = 0
        self._handlers = set()

    @contextlib.asynccontextmanager
    async def serve(self, ssl_context=None):
        server = await asyncio.start_server(self._handle, "127.0.0.1", 0, ssl=ssl_context)
        self.port = server.sockets[0].getsockname()[1]
        async with server:
            yield self
        if self._handlers:
            await asyncio.wait(self._handlers, timeout=PATIENCE)

    async def _handle(self, reader, writer):
        self.connections += 1
        self._handlers.add(asyncio.current_task())
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            self.requests.append((await reader.readuntil(b"\r\n\r\n")).decode())
            step = self.script[min(len(self.requests), len(self.script)) - 1]
            if callable(step):
                await step(writer)
            else:
                writer.write(step)
                await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


class Network(httpcore2.AsyncNetworkBackend):
    """Leads every address to one host, and notes what was dialled."""

    def __init__(self, host):
        self._host = host
        self._real = httpcore2.AnyIOBackend()
        self.dialled = []

    async def connect_tcp(self, host, port, *settings):
        self.dialled.append((host, port))
        return await self._real.connect_tcp("127.0.0.1", self._host.port, *settings)


class Names:
    """A resolver: each name has a list of answers, used up one after the other; the last one stays."""

    def __init__(self, **answers):
        self._answers = {name.replace("_", "."): list(given) for name, given in answers.items()}
        self.asked = []

    async def __call__(self, host, port):
        self.asked.append(host)
        if host not in self._answers:
            raise OSError("no such host")
        answers = self._answers[host]
        found = answers.pop(0) if len(answers) > 1 else answers[0]
        return [ip_address(address) for address in ([found] if isinstance(found, str) else found)]


def fetcher(host, names=None, *, ssl_context=None, **settings):
    """A fetcher whose every connection leads to ``host``, and its network."""
    network = Network(host)
    names = names or Names(media_test=[PUBLIC])
    made = MediaFetcher(MediaConfig(**settings), resolve=names, ssl_context=ssl_context, dialer=network)
    return made, network

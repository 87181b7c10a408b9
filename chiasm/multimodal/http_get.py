"""One GET request to addresses that were checked before. Imported only when something is downloaded."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import httpcore2

from chiasm.multimodal.addresses import IPAddress
from chiasm.multimodal.content_coding import BodyDecoder, CodingError
from chiasm.multimodal.remote_url import RemoteTarget
from chiasm.schema.media import Modality

_NETWORK_ERRORS = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError)
# What a host may cost: parsing takes as long for a piece of one byte as for one of 64 KiB.
_MAX_HEAD_BYTES = 32 * 1024  # of headers, of the interim responses before them too
_HEAD_READ = 4096
_FREE_PIECES = 64
_MIN_MEAN_PIECE = 256  # bytes; a piece is a chunk, or a part of one where the network cut it
_HEADERS = (("User-Agent", "chiasm"), ("Accept-Encoding", "identity"))
# What can be decoded goes first, for hosts that choose by it; anything else is looked at, too.
_ACCEPTED: dict[Modality, str] = {
    "image": "image/jpeg, image/png, image/webp, image/gif, image/bmp, image/*;q=0.5, */*;q=0.1",
    "video": "video/mp4, video/webm, image/gif, video/*;q=0.5, */*;q=0.1",
}


class DownloadError(Exception):
    """The host could not be reached, or broke off."""


class TooLargeError(Exception):
    """The body is larger than allowed."""


class HostFaultError(Exception):
    """What the host sends can't be read, or not in time; the message says why, as it follows "its host sends"."""


@dataclass(frozen=True)
class Answer:
    """What a host answered.

    Attributes:
        status: the HTTP status.
        location: of a redirect, as sent; None without one.
        body: empty unless the status is 200.
    """

    status: int
    location: str | None
    body: bytes


class _HeadLimit:
    """Counts what a host sends before its answer's body.

    Attributes:
        is_over: whether the headers have come.
    """

    def __init__(self) -> None:
        self.is_over = False
        self._num_bytes = 0

    def count(self, num_bytes: int) -> None:
        """Count bytes that have arrived.

        Raises:
            HostFaultError: if they are too many.
        """
        self._num_bytes += num_bytes
        if not self.is_over and self._num_bytes > _MAX_HEAD_BYTES:
            raise HostFaultError(f"more than {_MAX_HEAD_BYTES} bytes before the media")


class _LimitedStream(httpcore2.AsyncNetworkStream):
    """A connection whose headers come in small steps, and not without end."""

    def __init__(self, stream: httpcore2.AsyncNetworkStream, head: _HeadLimit) -> None:
        self._stream = stream
        self._head = head

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:  # noqa: ASYNC109 - httpcore2's
        if self._head.is_over:
            return await self._stream.read(max_bytes, timeout)
        data = await self._stream.read(min(max_bytes, _HEAD_READ), timeout)
        self._head.count(len(data))
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:  # noqa: ASYNC109 - httpcore2's
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's
    ) -> httpcore2.AsyncNetworkStream:
        return _LimitedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout), self._head)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


class _PinnedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to given addresses, whatever the name resolves to by now."""

    def __init__(
        self, addresses: Sequence[IPAddress], dialer: httpcore2.AsyncNetworkBackend, head: _HeadLimit
    ) -> None:
        self._addresses = addresses
        self._dialer = dialer
        self._head = head

    async def connect_tcp(
        self,
        host: str,  # noqa: ARG002 - the point of this class
        port: int,
        timeout: float | None = None,  # noqa: ASYNC109 - httpcore2's interface
        local_address: str | None = None,
        socket_options: Iterable[httpcore2.SOCKET_OPTION] | None = None,
    ) -> httpcore2.AsyncNetworkStream:
        failure: Exception = httpcore2.ConnectError()
        for address in self._addresses:
            try:
                dialled = await self._dialer.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except httpcore2.ConnectError as error:
                failure = error
            else:
                return _LimitedStream(dialled, self._head)
        raise failure


async def http_get(
    target: RemoteTarget,
    addresses: Sequence[IPAddress],
    modality: Modality,
    *,
    max_bytes: int,
    on_bytes: Callable[[int], None],
    ssl_context: ssl.SSLContext | None,
    dialer: httpcore2.AsyncNetworkBackend | None = None,
) -> Answer:
    """Request ``target`` from the first of ``addresses`` that accepts; redirects are not followed.

    TLS certificates are verified against the host's name, and no proxy of the environment is used: it would
    resolve the name again.

    Args:
        target: what to request.
        addresses: the host's checked addresses.
        modality: what is hoped for, for hosts that have it in several formats.
        max_bytes: largest body; it is counted as it arrives, whatever its stated length, and decoded.
        on_bytes: told the length of each piece of the body that has arrived, decoded; what it raises ends the
            download.
        ssl_context: None verifies against the system's authorities.
        dialer: what opens connections.

    Raises:
        DownloadError: if no address accepts, or the host breaks off or speaks no HTTP.
        TooLargeError: as soon as the body exceeds ``max_bytes``.
        HostFaultError: as soon as headers are too long, a body's pieces too many for their size, or its encoding
            can't be decoded.
    """
    url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.target)
    headers, head = [("Host", target.host_header), ("Accept", _ACCEPTED[modality]), *_HEADERS], _HeadLimit()
    backend = _PinnedBackend(addresses, dialer or httpcore2.AnyIOBackend(), head)
    context = ssl_context or _system_ssl_context()
    try:
        async with (
            httpcore2.AsyncHTTPConnection(url.origin, ssl_context=context, network_backend=backend) as connection,
            connection.stream("GET", url, headers=headers) as response,
        ):
            head.is_over = True
            body = await _read_body(response, max_bytes, on_bytes) if response.status == 200 else b""
            return Answer(response.status, _location(response), body)
    except _NETWORK_ERRORS as error:
        raise DownloadError from error


@functools.cache  # reading the system's certificates takes 20 ms
def _system_ssl_context() -> ssl.SSLContext:
    return httpcore2.default_ssl_context()


async def _read_body(response: httpcore2.Response, max_bytes: int, on_bytes: Callable[[int], None]) -> bytes:
    body = bytearray()
    num_pieces = num_received = 0
    try:
        decoder = BodyDecoder(", ".join(_values(response, b"content-encoding")))
        async for piece in response.aiter_stream():
            num_pieces += 1
            num_received += len(piece)
            if num_received > max_bytes:
                raise TooLargeError
            if num_received < (num_pieces - _FREE_PIECES) * _MIN_MEAN_PIECE:
                raise HostFaultError("it in too small pieces")
            for part in decoder.feed(piece):
                body += part
                if len(body) > max_bytes:
                    raise TooLargeError
                on_bytes(len(part))
            if num_pieces % _FREE_PIECES == 0:  # one read can hold thousands of pieces, without a pause between
                await asyncio.sleep(0)
    except CodingError as error:
        raise HostFaultError(str(error)) from error
    if not decoder.is_complete:
        raise DownloadError
    return bytes(body)


def _location(response: httpcore2.Response) -> str | None:
    return next(iter(_values(response, b"location")), None)


def _values(response: httpcore2.Response, name: bytes) -> list[str]:
    """What a header says, each time that it is there."""
    return [value.decode("utf-8", errors="replace") for found, value in response.headers if found.lower() == name]

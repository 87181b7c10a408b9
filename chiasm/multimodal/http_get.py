"""One GET request to addresses that were checked before. Imported only when something is downloaded."""

from __future__ import annotations

import functools
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import httpcore2

from chiasm.multimodal.addresses import IPAddress
from chiasm.multimodal.remote_url import RemoteTarget

_NETWORK_ERRORS = (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException, OSError)
_HEADERS = (("User-Agent", "chiasm"), ("Accept", "image/*"), ("Accept-Encoding", "identity"))


class DownloadError(Exception):
    """The host could not be reached, or broke off."""


class TooLargeError(Exception):
    """The body is larger than allowed."""


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


class _PinnedBackend(httpcore2.AsyncNetworkBackend):
    """Connects to given addresses, whatever the name resolves to by now."""

    def __init__(self, addresses: Sequence[IPAddress], dialer: httpcore2.AsyncNetworkBackend) -> None:
        self._addresses = addresses
        self._dialer = dialer

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
                return await self._dialer.connect_tcp(str(address), port, timeout, local_address, socket_options)
            except httpcore2.ConnectError as error:
                failure = error
        raise failure


async def http_get(
    target: RemoteTarget,
    addresses: Sequence[IPAddress],
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
        max_bytes: largest body; it is counted as it arrives, whatever its stated length.
        on_bytes: told the length of each piece of the body that has arrived; what it raises ends the download.
        ssl_context: None verifies against the system's authorities.
        dialer: what opens connections.

    Raises:
        DownloadError: if no address accepts, or the host breaks off or speaks no HTTP.
        TooLargeError: as soon as the body exceeds ``max_bytes``.
    """
    url = httpcore2.URL(scheme=target.scheme, host=target.host, port=target.port, target=target.target)
    headers = [("Host", target.host_header), *_HEADERS]
    backend = _PinnedBackend(addresses, dialer or httpcore2.AnyIOBackend())
    ssl_context = ssl_context or _system_ssl_context()
    try:
        async with (
            httpcore2.AsyncHTTPConnection(url.origin, ssl_context=ssl_context, network_backend=backend) as connection,
            connection.stream("GET", url, headers=headers) as response,
        ):
            body = await _read_body(response, max_bytes, on_bytes) if response.status == 200 else b""
            return Answer(response.status, _location(response), body)
    except _NETWORK_ERRORS as error:
        raise DownloadError from error


@functools.cache  # reading the system's certificates takes 20 ms
def _system_ssl_context() -> ssl.SSLContext:
    return httpcore2.default_ssl_context()


async def _read_body(response: httpcore2.Response, max_bytes: int, on_bytes: Callable[[int], None]) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_stream():
        body += chunk
        if len(body) > max_bytes:
            raise TooLargeError
        on_bytes(len(chunk))
    return bytes(body)


def _location(response: httpcore2.Response) -> str | None:
    for name, value in response.headers:
        if name.lower() == b"location":
            return value.decode("utf-8", errors="replace")
    return None

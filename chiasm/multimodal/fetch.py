"""Downloading what a request's URL names, without letting the request choose whom inside we talk to.

A host is resolved once, all its addresses are checked, and exactly these are dialled; every redirect goes through
the same. One deadline covers everything, and the body is cut off at its limit.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NoReturn
from urllib.parse import urljoin

from chiasm.config.engine import MediaConfig
from chiasm.errors import UserError
from chiasm.multimodal.addresses import IPAddress
from chiasm.multimodal.download_thread import run_in_download_thread
from chiasm.multimodal.downloads import HeldDownloads
from chiasm.multimodal.reach import Reach
from chiasm.multimodal.remote_url import RemoteTarget, parse_remote_url
from chiasm.multimodal.resolve import Resolver, SystemResolver
from chiasm.schema.media import Modality

if TYPE_CHECKING:
    import httpcore2

    from chiasm.multimodal.http_get import Answer

OnBytes = Callable[[int], None]

_MAX_REDIRECTS = 3
_MAX_DOWNLOADS = 64
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_REDIRECTS = (301, 302, 303, 307, 308)
# Passing troubles of the remote host: the client may try again.
_TRANSIENT = (408, 425, 429)


class MediaFetcher:
    """Downloads pictures and videos from the public internet and from private hosts that the operator names.

    Args:
        media: timeouts, size limit, and whom downloads may reach.
        resolve: finds the addresses of a host; None asks the system.
        ssl_context: None verifies against the system's authorities.
        dialer: opens connections; None means plain TCP.

    Raises:
        UserError: if ``media`` names a host that can't be; see ``Reach``.
    """

    def __init__(
        self,
        media: MediaConfig,
        *,
        resolve: Resolver | None = None,
        ssl_context: ssl.SSLContext | None = None,
        dialer: httpcore2.AsyncNetworkBackend | None = None,
    ) -> None:
        self._seconds = {"image": media.fetch_timeout, "video": media.video_fetch_timeout}
        self._max_bytes = media.max_media_bytes
        self._reach = Reach(media)
        self._resolve = resolve or SystemResolver()
        self._ssl_context = ssl_context
        self._dialer = dialer
        self._slots = asyncio.Semaphore(_MAX_DOWNLOADS)

    async def fetch(
        self,
        url: str,
        param: str | None = None,
        *,
        modality: Modality = "image",
        held: HeldDownloads | None = None,
    ) -> bytes:
        """Download a picture or a video.

        Args:
            url: of scheme ``http`` or ``https``.
            param: the request's field that holds it, for errors.
            modality: what it is, which may take its own time, redirects included.
            held: counts its bytes; None if nobody bounds them.

        Raises:
            UserError: 400 for a host or an address that may not be reached; 422 for a malformed URL, a host that
                does not exist or sends what can't be read in time, a refusal by the host, too many redirects or too
                large a body, and, with ``may_pass``, a host that is out of order or too slow.
            OverloadedError: if too many hosts are being looked up, or from ``held``.
        """
        seconds = self._seconds[modality]
        async with self._slots:
            try:
                async with asyncio.timeout(seconds):
                    return await self._follow(url, modality, partial(_count, held, param), param)
            except TimeoutError as error:
                message = f"the media URL could not be downloaded within {seconds:g} seconds."
                raise UserError(message, param=param, status=422, may_pass=True) from error

    async def _follow(self, url: str, modality: Modality, on_bytes: OnBytes, param: str | None) -> bytes:
        for _ in range(1 + _MAX_REDIRECTS):
            target = parse_remote_url(url, param=param)
            answer = await self._get(target, modality, on_bytes, param)
            if answer.status == 200:
                return answer.body
            if answer.status not in _REDIRECTS or answer.location is None:
                _refuse_answer(answer.status, param)
            url = _joined(url, answer.location, param)
        raise UserError(f"the media URL redirects more than {_MAX_REDIRECTS} times.", param=param, status=422)

    async def _get(self, target: RemoteTarget, modality: Modality, on_bytes: OnBytes, param: str | None) -> Answer:
        # Only when needed: 70 ms.
        from chiasm.multimodal.http_get import DownloadError, HostFaultError, TooLargeError, http_get

        addresses = await self._checked_addresses(target, param)
        try:
            download = http_get(
                target,
                addresses,
                modality,
                max_bytes=self._max_bytes,
                on_bytes=on_bytes,
                ssl_context=self._ssl_context,
                dialer=self._dialer,
            )
            return await run_in_download_thread(download)
        except TooLargeError as error:
            message = f"the media URL must hold at most {self._max_bytes} bytes."
            raise UserError(message, param=param, status=422) from error
        except HostFaultError as error:
            message = f"the media URL could not be downloaded: its host sends {error}."
            raise UserError(message, param=param, status=422) from error
        except DownloadError as error:
            message = "the media URL could not be downloaded: its host can't be reached or broke off."
            raise UserError(message, param=param, status=422, may_pass=True) from error

    async def _checked_addresses(self, target: RemoteTarget, param: str | None) -> Sequence[IPAddress]:
        self._reach.check_host(target, param)
        try:
            addresses = [target.address] if target.address else await self._resolve(target.host, target.port)
        except OSError as error:
            raise UserError("the media URL's host is unknown.", param=param, status=422) from error
        self._reach.check_addresses(target, addresses, param)
        return addresses


def _count(held: HeldDownloads | None, param: str | None, num_bytes: int) -> None:
    if held is not None:
        held.grow(num_bytes, param)


def _joined(url: str, location: str, param: str | None) -> str:
    if _SCHEME.match(location):  # a whole URL, which the strict parser alone shall read
        return location
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise UserError("the media URL redirects to a malformed URL.", param=param, status=422) from error


def _refuse_answer(status: int, param: str | None) -> NoReturn:
    may_pass = status in _TRANSIENT or status >= 500
    raise UserError(f"the media URL's host answered {status}.", param=param, status=422, may_pass=may_pass)

"""Parsing ``http`` URLs by one strict grammar.

What is checked is what is dialled: no second parser sees the URL, so none can read another host into it. Forms
that parsers disagree about (user names, backslashes, spaces, numbers as hosts) are refused rather than understood.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import NoReturn
from urllib.parse import quote

import idna

from chiasm.errors import UserError
from chiasm.multimodal.addresses import IPAddress

_MAX_LENGTH = 8192
_MAX_NAME = 253
_DEFAULT_PORTS = {"http": 80, "https": 443}
_URL = re.compile(
    r"(?P<scheme>https?)://"
    r"(?P<host>\[[0-9a-f:.]+\]|[^/?#@:\[\]%]+)"
    r"(?::(?P<port>[0-9]{1,5}))?"
    r"(?P<path>/[^?#]*)?"
    r"(?P<query>\?[^#]*)?"
    r"(?:#.*)?",
    re.IGNORECASE,
)
_FORBIDDEN = re.compile(r"[\x00-\x20\x7f\\]")
_NAME = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(?:\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")
# As browsers tell numbers from names: by the last label.
_NUMBER = re.compile(r"(?:.*\.)?(?:[0-9]+|0x[0-9a-f]*)")


@dataclass(frozen=True)
class RemoteTarget:
    """A parsed URL.

    Attributes:
        scheme: "http" or "https".
        host: lower-case ASCII name without a trailing dot, or the text of an address, without brackets.
        port: given or the scheme's own.
        target: path and query, ASCII.
    """

    scheme: str
    host: str
    port: int
    target: str

    @property
    def address(self) -> IPAddress | None:
        """The host, where it is an address."""
        try:
            return IPv6Address(self.host) if ":" in self.host else IPv4Address(self.host)
        except AddressValueError:
            return None

    @property
    def host_and_port(self) -> str:
        """``host:port``, with an IPv6 address in brackets."""
        return f"{self._bracketed_host}:{self.port}"

    @property
    def host_header(self) -> str:
        """The same as HTTP wants it: without a port that the scheme implies."""
        return self._bracketed_host if self.port == _DEFAULT_PORTS[self.scheme] else self.host_and_port

    @property
    def _bracketed_host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def parse_remote_url(url: str, *, param: str | None = None) -> RemoteTarget:
    """Parse an ``http`` or ``https`` URL.

    Raises:
        UserError: (422) if it does not have the plain form ``https://host[:port]/path?query``.
    """
    match = _URL.fullmatch(url) if len(url) <= _MAX_LENGTH and not _FORBIDDEN.search(url) else None
    if not match:
        _refuse("it must have the form https://host[:port]/path, without user name, spaces or backslashes", param)
    scheme = match["scheme"].lower()
    port = int(match["port"] or _DEFAULT_PORTS[scheme])
    if not 0 < port < 2**16:
        _refuse(f"{port} is not a port", param)
    host = _normalized_host(match["host"], param)
    return RemoteTarget(scheme, host, port, _ascii_target(match["path"] or "/", match["query"] or "", param))


def _normalized_host(host: str, param: str | None) -> str:
    if host.startswith("["):
        try:
            return str(IPv6Address(host[1:-1]))
        except AddressValueError:
            _refuse("its host is not an IPv6 address", param)
    name = _ascii_name(host, param).removesuffix(".")
    with contextlib.suppress(AddressValueError):
        return str(IPv4Address(name))
    if _NUMBER.fullmatch(name):
        _refuse("an address must be written as four decimal numbers", param)
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        _refuse("its host is not a host name", param)
    return name


def _ascii_name(host: str, param: str | None) -> str:
    if host.isascii():
        return host.lower()
    try:
        return idna.encode(host, uts46=True).decode("ascii")
    except (idna.IDNAError, UnicodeError):
        _refuse("its host is not a host name", param)


def _ascii_target(path: str, query: str, param: str | None) -> str:
    try:
        return quote(path + query, safe="/?:@!$&'()*+,;=-._~%[]")
    except UnicodeEncodeError:  # half of a surrogate pair, which JSON can spell
        _refuse("it holds a character that no URL can hold", param)


def _refuse(reason: str, param: str | None) -> NoReturn:
    raise UserError(f"the media URL is malformed: {reason}.", param=param, status=422)

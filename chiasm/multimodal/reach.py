"""Whom the downloads of requests may reach: decided here, from a URL and the addresses that its host has."""

from __future__ import annotations

import re
from collections.abc import Iterable

from chiasm.config.engine import MediaConfig
from chiasm.errors import UserError, refuse
from chiasm.multimodal.addresses import IPAddress, is_own, is_public
from chiasm.multimodal.remote_url import RemoteTarget, parse_remote_url

_HOST_AND_PORT = re.compile(r"[^/?#]+:[0-9]+")
_DOMAIN = re.compile(r"[^/?#:@]+|\[[^\]]+\]")


class Reach:
    """The public internet or some domains of it, and private hosts that the operator names.

    Args:
        media: the domains and the hosts.

    Raises:
        UserError: for one of ``allowed_media_hosts`` that is not ``host:port``, or one of ``allowed_media_domains``
            that is no host.
    """

    def __init__(self, media: MediaConfig) -> None:
        self._admitted = frozenset(map(_parse_host_and_port, media.allowed_media_hosts))
        self._domains = frozenset(map(_parse_domain, media.allowed_media_domains))

    def check_host(self, target: RemoteTarget, param: str | None) -> None:
        """Refuse a host that is in none of the domains, before its name is looked up.

        Raises:
            UserError: naming the flag.
        """
        if self._domains and target.host not in self._domains and not self._is_admitted(target):
            message = "the media URL's host is none that the operator allows with --allowed-media-domains."
            raise UserError(message, param=param)

    def check_addresses(self, target: RemoteTarget, addresses: Iterable[IPAddress], param: str | None) -> None:
        """Refuse a host that has an address inside.

        One among several is enough: no honest public host has one.

        Raises:
            UserError: naming the flag that admits private hosts.
        """
        if self._is_admitted(target):
            return
        if not all(is_public(address) and not is_own(address) for address in addresses):
            message = "the media URL leads to an address that is not public, or to this server itself; the operator "
            raise UserError(message + "can admit a host with --allowed-media-hosts.", param=param)

    def _is_admitted(self, target: RemoteTarget) -> bool:
        return target.host_and_port in self._admitted


def _parse_host_and_port(entry: str) -> str:
    limit = "of the form host:port, with a whole host name or address"
    return _parse_entry("allowed_media_hosts", entry, _HOST_AND_PORT, limit).host_and_port


def _parse_domain(entry: str) -> str:
    limit = "a whole host name such as images.example.org, without scheme, port, path or wildcard"
    return _parse_entry("allowed_media_domains", entry, _DOMAIN, limit).host


def _parse_entry(param: str, entry: str, form: re.Pattern[str], limit: str) -> RemoteTarget:
    if not form.fullmatch(entry):
        refuse(param, entry, limit)
    try:
        return parse_remote_url(f"http://{entry}")
    except UserError:  # it speaks of a request's URL
        refuse(param, entry, limit)

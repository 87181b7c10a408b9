"""Which network addresses a request may make this server talk to: the public internet's and no others."""

from __future__ import annotations

import socket
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

IPAddress = IPv4Address | IPv6Address

_ALSO_INSIDE = (
    IPv4Network("168.63.129.16/32"),  # global by the registry, yet Azure serves machine settings and secrets there
    # Reserved for protocols and documentation, which the tables of older Pythons know only in part:
    IPv4Network("192.0.0.0/24"),
    IPv4Network("192.88.99.0/24"),
    IPv6Network("2001::/23"),
    IPv6Network("3fff::/20"),
)
_GLOBAL_UNICAST = IPv6Network("2000::/3")
# IPv6 networks whose addresses stand for an IPv4 address, and how far right its lowest bit is.
_EMBEDDING = (
    (IPv6Network("::ffff:0:0/96"), 0),  # mapped
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (IPv6Network("2002::/16"), 80),  # 6to4
)


def is_public(address: IPAddress) -> bool:
    """Whether an address belongs to the public internet.

    Not public are loopback, private, shared, link-local, multicast, reserved, documentation and unspecified
    addresses, IPv6 outside of global unicast, and every IPv6 form that leads to such an IPv4 address.
    """
    if isinstance(address, IPv6Address):
        if embedded := _embedded(address):
            return is_public(embedded)
        if address not in _GLOBAL_UNICAST:
            return False
    is_inside = address.is_multicast or any(address in network for network in _ALSO_INSIDE)
    return address.is_global and not is_inside


def is_own(address: IPAddress) -> bool:
    """Whether it is this machine's own: what listens there may trust whoever comes from within.

    Behind an address translator a machine doesn't know by which address others find it.
    """
    address = (_embedded(address) if isinstance(address, IPv6Address) else None) or address
    family = socket.AF_INET6 if isinstance(address, IPv6Address) else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), 9))  # sends nothing: the system only picks the address to send from
            return ip_address(probe.getsockname()[0]) == address
    except OSError:  # no way leads there
        return False


def _embedded(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for."""
    for network, shift in _EMBEDDING:
        if address in network:
            return IPv4Address(int(address) >> shift & 0xFFFFFFFF)
    return None

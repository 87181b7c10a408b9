"""Which network addresses a request may make this server talk to: the public internet's and no others."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

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
        for network, shift in _EMBEDDING:
            if address in network:
                return is_public(IPv4Address(int(address) >> shift & 0xFFFFFFFF))
        if address not in _GLOBAL_UNICAST:
            return False
    is_inside = address.is_multicast or any(address in network for network in _ALSO_INSIDE)
    return address.is_global and not is_inside

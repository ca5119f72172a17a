"""Which network addresses a download may reach: public ones only, judged after every disguise is taken off.

`ipaddress.is_global` alone is not enough: it holds for multicast, for IPv6 forms that carry a private IPv4
address, and for several clouds' metadata services. Ranges are from the IANA special-purpose registries (RFC
6890 and its updates).
"""

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import TypeAlias

Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

_CLOSED_4 = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "168.63.129.16/32",  # Azure's host services, in a public range
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.31.196.0/24",
        "192.52.193.0/24",
        "192.88.99.0/24",
        "192.168.0.0/16",
        "192.175.48.0/24",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",
        "240.0.0.0/4",
    )
)
_UNICAST_6 = ip_network("2000::/3")
_CLOSED_6 = tuple(ip_network(text) for text in ("2001::/23", "2001:db8::/32", "3fff::/20", "2620:4f:8000::/48"))
_NAT64 = ip_network("64:ff9b::/96")
_LOW_32 = 0xFFFFFFFF


def is_public(text: str) -> bool:
    """Whether this address literal may be connected to. False for anything that is not an address, or has a
    zone.
    """
    try:
        address = ip_address(text)
    except ValueError:
        return False
    return _public_4(address) if isinstance(address, IPv4Address) else _public_6(address)


async def resolve(host: str, port: int) -> Sequence[str]:
    """All addresses of a host, in the order the system prefers. OSError when there are none."""
    with contextlib.suppress(ValueError):
        return [str(ip_address(host))]  # an address is its own answer; every other spelling of one goes on
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in found))


def _public_4(address: IPv4Address) -> bool:
    closed = any(address in network for network in _CLOSED_4)
    return address.is_global and not (closed or address.is_multicast or address.is_reserved)


def _public_6(address: IPv6Address) -> bool:
    if address.scope_id is not None:
        return False
    if address.ipv4_mapped is not None:
        return _public_4(address.ipv4_mapped)
    if address in _NAT64:
        return _public_4(IPv4Address(int(address) & _LOW_32))
    if address.sixtofour is not None:
        return _public_4(address.sixtofour)
    closed = any(address in network for network in _CLOSED_6)
    bad = closed or address.is_multicast or address.is_reserved or address.is_site_local
    return address.is_global and address in _UNICAST_6 and not bad

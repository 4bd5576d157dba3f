"""Addresses of hosts and listeners.

Look a host up once, check its address, and use that address, so that DNS cannot change it.
"""

from __future__ import annotations

import ipaddress
import socket

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class AddressError(Exception):
    """A host that cannot be looked up, or an address that nothing may be sent to."""


def find_address(host: str, port: int, *, public: bool) -> str:
    """An address of `host`. `public` hosts have public addresses alone; any other was named by who
    runs spotd and may be on a private network, but is never a neighbour on the link, where clouds
    keep their machines' credentials (169.254.169.254). Raises AddressError, which does not name the
    host's path."""
    try:
        infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is not a name of a host"
        raise AddressError(f"{host} cannot be looked up: {why}") from None
    addresses = [ipaddress.ip_address(str(info[4][0]).partition("%")[0]) for info in infos]
    for address in addresses:
        if not _is_allowed(_plain(address), public=public):
            raise AddressError(f"{host} leads to {address}: nothing is sent there")
    return str(addresses[0])


def _is_allowed(address: Address, *, public: bool) -> bool:
    if public:
        return address.is_global and not address.is_multicast
    return not (address.is_link_local or address.is_multicast or address.is_unspecified)


def _plain(address: Address) -> Address:
    """An IPv4 address in IPv6 clothes is what it is."""
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if mapped is not None else address


def split_listen(listen: str, *, example: str) -> tuple[str, int]:
    """Return (address, port) of "127.0.0.1:9464" or "[::1]:9464".

    Raises ValueError ("what; fix"), which names `example`.
    """
    host, _, port = listen.rpartition(":")
    try:
        address = ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
        number = int(port) if port.isdecimal() else 0
    except ValueError:
        raise ValueError(f"{listen!r} is not an address and port; write {example!r}") from None
    if not 0 < number < 1 << 16:
        raise ValueError(f"{listen!r} has no port from 1 to 65535; write {example!r}")
    return str(address), number

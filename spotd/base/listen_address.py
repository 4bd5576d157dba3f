"""The address and port that a server of ours listens on, as a setting names them."""

from __future__ import annotations

import ipaddress


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

"""A port of the loopback for a server that cannot choose one by itself."""

from __future__ import annotations

import socket


def free_port() -> int:
    """Free now; somebody else may take it before it is used."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port

"""Send one HTTP request with a hard deadline, never through a proxy.

Socket timeouts do not bound a peer that sends a byte now and then; a caller without a bound of its
own would then miss its notices. Standard library only: it runs on nodes too. `http.client` ignores
the proxy variables.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult


@dataclass(frozen=True)
class HttpResponse:
    """Header names are as the peer wrote them. The body is cut at the limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def is_loopback(address: SplitResult) -> bool:
    """Return whether the address is on this machine, without asking a name server."""
    try:
        host = address.hostname or ""
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def send_request(
    address: tuple[str, int],
    method: str,
    target: str,
    *,
    timeout_s: float,
    limit_bytes: int,
    headers: Mapping[str, str],
    body: bytes | None = None,
) -> HttpResponse:
    """Send one request. `timeout_s` bounds all of it except the name lookup.

    Raises OSError, ValueError and http.client.HTTPException.
    """
    connection = _Connection(*address, timeout=timeout_s)
    try:
        connection.request(method, target, body, dict(headers))
        with connection.getresponse() as response:
            content = response.read(limit_bytes)
            return HttpResponse(response.status, dict(response.getheaders()), content)
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """A connection whose socket has one deadline for all operations."""

    sock: Any

    def connect(self) -> None:
        deadline_s = time.monotonic() + (self.timeout or 0.0)
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = _Socket(self.sock, deadline_s)


class _Socket:
    """The part of a socket that `http.client` uses.

    `http.client` closes its socket before it has read the answer of a peer that closes the
    connection; the files made from the socket keep it open.
    """

    def __init__(self, sock: socket.socket, deadline_s: float) -> None:
        self._sock = sock
        self._deadline_s = deadline_s
        self._references = 1

    def with_timeout(self) -> socket.socket:
        """Return the socket with the remaining time as its timeout. Raises TimeoutError when none
        is left."""
        remaining_s = self._deadline_s - time.monotonic()
        if remaining_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(remaining_s)
        return self._sock

    def sendall(self, data: bytes) -> None:
        self.with_timeout().sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        self._references += 1
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        self._references -= 1
        if not self._references:
            self._sock.close()


class _Reader(io.RawIOBase):
    def __init__(self, sock: _Socket) -> None:
        self._socket = sock

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._socket.close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        return self._socket.with_timeout().recv_into(buffer)

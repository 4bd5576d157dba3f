"""One HTTP exchange that is over in time, whatever the peer does, and never through a proxy.

A peer that drips a byte now and then outlives every time-out of a socket, and whoever waits for it
with no bound of its own hears of no notice any more. Standard library only: it runs on nodes too.
`http.client` knows nothing of the proxy variables.
"""

from __future__ import annotations

import http.client
import io
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class HttpResponse:
    """What came back. Header names are as the peer wrote them; the body is cut at the limit."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def exchange(
    address: tuple[str, int],
    method: str,
    target: str,
    *,
    timeout_s: float,
    limit_bytes: int,
    headers: Mapping[str, str],
    body: bytes | None = None,
) -> HttpResponse:
    """Ask once. Raises OSError, ValueError and http.client.HTTPException, at the latest after
    `timeout_s` in all (the name's look-up aside)."""
    connection = _Connection(*address, timeout=timeout_s)
    try:
        connection.request(method, target, body, dict(headers))
        with connection.getresponse() as response:
            content = response.read(limit_bytes)
            return HttpResponse(response.status, dict(response.getheaders()), content)
    finally:
        connection.close()


class _Connection(http.client.HTTPConnection):
    """Its socket has one deadline for everything."""

    sock: Any

    def connect(self) -> None:
        end_s = time.monotonic() + (self.timeout or 0.0)
        super().connect()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock = _Socket(self.sock, end_s)


class _Socket:
    """As much of a socket as `http.client` uses. It closes its own before it has read the answer of
    a peer that will close its: what has been made of it keeps it open."""

    def __init__(self, sock: socket.socket, end_s: float) -> None:
        self._sock = sock
        self._end_s = end_s
        self._in_use = 1

    def within(self) -> socket.socket:
        """The socket, with the time that is left. Raises TimeoutError when none is."""
        left_s = self._end_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(left_s)
        return self._sock

    def sendall(self, data: bytes) -> None:
        self.within().sendall(data)

    def makefile(self, _mode: str) -> io.BufferedReader:
        self._in_use += 1
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        self._in_use -= 1
        if not self._in_use:
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
        return self._socket.within().recv_into(buffer)

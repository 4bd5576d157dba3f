"""Limit the connections to a web server, before and after the TLS handshake."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

MOST = 32  # connections
SILENT_S = 10.0  # for so long one may be there and ask for nothing
MOST_HALF_OPEN = 128  # connections whose TLS handshake is not complete
MOST_HALF_OPEN_OF_ADDRESS = 16
HANDSHAKE_S = 3.0  # for so long a handshake may take when others wait


class Connection(H11Protocol):
    """A connection that is closed if it requests nothing, so that it uses up no files."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.began_s = time.monotonic()
        others = [connection for connection in self.connections if connection is not self]
        if len(others) >= MOST:
            idle = [other for other in others if isinstance(other, Connection) and other.idle]
            leaves = min(idle, key=lambda one: one.began_s, default=self)
            self.connections.discard(leaves)  # its end is heard of after others have come
            leaves.transport.abort()
        self.loop.call_later(SILENT_S, self._leave_if_silent)

    @property
    def idle(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is None or cycle.response_complete or cycle.more_body

    def _leave_if_silent(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None:
            self.transport.abort()


@dataclass(frozen=True)
class _HalfOpen:
    connection: socket.socket
    address: str
    since_s: float


class TlsListener(socket.socket):
    """A listening socket that limits connections whose TLS handshake is not complete.

    asyncio allots the buffers of a connection when it accepts it, and calls `connection_made` after
    the handshake, where `Connection` limits them. In between, nothing else does.
    """

    def __init__(self, family: int) -> None:
        super().__init__(family, socket.SOCK_STREAM)
        self._half_open: dict[int, _HalfOpen] = {}

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept a connection. Raises ConnectionAbortedError for one too many.

        Handshakes that take longer than `HANDSHAKE_S` are ended first.
        """
        connection, peer = super().accept()
        waiting = self.half_open()
        now_s = time.monotonic()
        for entry in waiting:
            if now_s - entry.since_s >= HANDSHAKE_S:
                with contextlib.suppress(OSError):
                    entry.connection.shutdown(socket.SHUT_RDWR)
        same = sum(entry.address == peer[0] for entry in waiting)
        if len(waiting) >= MOST_HALF_OPEN or same >= MOST_HALF_OPEN_OF_ADDRESS:
            connection.close()
            raise ConnectionAbortedError("too many connections are in their TLS handshake")
        self._half_open[connection.fileno()] = _HalfOpen(connection, peer[0], now_s)
        return connection, peer

    def half_open(self) -> list[_HalfOpen]:
        """Return the connections without a handshake that are not closed."""
        self._half_open = {
            number: entry
            for number, entry in self._half_open.items()
            if entry.connection.fileno() == number
        }
        return list(self._half_open.values())

    def established(self, transport: asyncio.BaseTransport) -> None:
        """Count a connection as half-open no longer: its handshake is complete."""
        self._half_open.pop(transport.get_extra_info("socket").fileno(), None)

    def protocol(self) -> type[Connection]:
        """Return the class of the connections of this listener."""
        listener = self

        class TlsConnection(Connection):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                listener.established(transport)
                super().connection_made(transport)

        return TlsConnection

"""Limit connections to a loopback port: anyone with a login on this machine can open them."""

from __future__ import annotations

import asyncio
import time

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

MOST = 32  # connections
SILENT_S = 10.0  # for so long one may be there and ask for nothing


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
        return cycle is None or cycle.response_complete

    def _leave_if_silent(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None:
            self.transport.abort()

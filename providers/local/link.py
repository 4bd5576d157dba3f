"""The control link between a machine and its cloud, one JSON document a packet:

cloud -> machine  `{"publish": {...}}`, `{"withdraw": ID}`, `{"fault": {...}}`
machine -> cloud  `{"event": "booted" | "exec" | "published" | "withdrawn" | "acknowledged", ...}`

The end of the link is the end of the machine.
"""

from __future__ import annotations

import json
import socket
import threading
import time

from providers.local.power import Switch


class ControlLink:
    """The machine's end of the control link; `tell` may be called from any thread."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()

    def tell(self, event: str, **data: object) -> None:
        """Report one event, with the wall time at which it happened."""
        body = json.dumps({"event": event, "at_us": time.time_ns() // 1000, **data})
        with self._lock:
            self._link.send(body.encode())

    def receive(self, switch: Switch | None = None) -> dict[str, object] | None:
        """The next order; None when the cloud is gone. Raises PoweredOff, if there is a switch."""
        if switch is not None:
            switch.wait_unless_off(self._link)
        data = self._link.recv(150_000)
        return json.loads(data) if data else None

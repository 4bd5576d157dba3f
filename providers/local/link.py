"""The control link between a machine and its cloud, one JSON document per packet:

cloud -> machine  `{"publish": {...}}`, `{"withdraw": ID}`, `{"fault": {...}}`
machine -> cloud  `{"event": "booted" | "exec" | "published" | "withdrawn" | "acknowledged", ...}`

The machine ends when the link closes.
"""

from __future__ import annotations

import json
import socket
import threading
import time

from providers.local.power import PowerSwitch


class ControlLink:
    """The machine's end of the control link. `report` is thread-safe."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._lock = threading.Lock()

    def report(self, event: str, **data: object) -> None:
        """Send one event to the cloud, with the current wall time."""
        body = json.dumps({"event": event, "at_us": time.time_ns() // 1000, **data})
        with self._lock:
            self._link.send(body.encode())

    def receive(self, power_switch: PowerSwitch | None = None) -> dict[str, object] | None:
        """Receive the next order; None when the cloud is gone. With a switch raises PoweredOff."""
        if power_switch is not None:
            power_switch.wait_unless_off(self._link)
        data = self._link.recv(150_000)
        return json.loads(data) if data else None

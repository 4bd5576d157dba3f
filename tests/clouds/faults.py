"""What a stand-in for a cloud does wrong next, on a test's word."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`what` as in tests/providers/conformance.py; it hits the next call of one of `calls`."""

    what: str
    calls: tuple[str, ...]
    seconds: float = 1.0


class Faults:
    """Armed ones, each for one call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._armed: list[Fault] = []

    def arm(self, fault: Fault) -> None:
        with self._lock:
            self._armed.append(fault)

    def take(self, call: str) -> Fault | None:
        """The one that hits this call, which is spent by it."""
        with self._lock:
            for fault in self._armed:
                if call in fault.calls:
                    self._armed.remove(fault)
                    return fault
        return None

    def clear(self) -> None:
        with self._lock:
            self._armed.clear()

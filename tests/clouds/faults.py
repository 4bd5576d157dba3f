"""Faults that a test injects into a cloud stand-in."""

from __future__ import annotations

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A fault for the next call of one of `calls`; `what` as in tests/providers/conformance.py."""

    what: str
    calls: tuple[str, ...]
    seconds: float = 8.0


class Faults:
    """Armed faults, each for one call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cleared = threading.Event()
        self._armed: list[Fault] = []

    def arm(self, fault: Fault) -> None:
        with self._lock:
            self._armed.append(fault)

    def take(self, call: str) -> Fault | None:
        """Return and remove the fault for this call."""
        with self._lock:
            for fault in self._armed:
                if call in fault.calls:
                    self._armed.remove(fault)
                    return fault
        return None

    def hang(self, fault: Fault) -> None:
        """Return after the fault's time, or when the faults are cleared."""
        self._cleared.wait(fault.seconds)

    def clear(self) -> None:
        with self._lock:
            self._armed.clear()
            self._cleared.set()
            self._cleared = threading.Event()

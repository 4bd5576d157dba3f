"""Times to reconnect to a node whose link failed."""

from __future__ import annotations

from collections.abc import Container

from spotd.base.clock import Clock

FIRST_S, CAP_S = 0.25, 10.0


class Retries:
    """Pauses that double with every failure in a row. Belongs to the follower's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures: dict[str, int] = {}
        self._at_s: dict[str, float] = {}

    def failures(self, node_id: str) -> int:
        """Return the number of failures in a row."""
        return self._failures.get(node_id, 0)

    def fail(self, node_id: str, pause_s: float = 0.0) -> None:
        """Note a failure; `pause_s` is given if the pause is already known."""
        failures = self.failures(node_id)
        self._failures[node_id] = failures + 1
        pause_s = pause_s or min(FIRST_S * float(1 << min(failures, 10)), CAP_S)
        self._at_s[node_id] = self._clock.monotonic_s() + pause_s

    def succeed(self, node_id: str) -> None:
        """Note that the node itself sent a message."""
        self._failures.pop(node_id, None)

    def due(self, node_id: str, now_s: float) -> bool:
        return now_s >= self._at_s.get(node_id, now_s)

    def next_s(self, busy: Container[str]) -> float:
        """The earliest moment at which one becomes due that is not in `busy`."""
        return min((at_s for n, at_s in self._at_s.items() if n not in busy), default=float("inf"))

    def forget(self, present: Container[str]) -> None:
        """Drop nodes that are not in `kept`."""
        for memory in (self._failures, self._at_s):
            for node_id in [n for n in memory if n not in present]:
                del memory[node_id]

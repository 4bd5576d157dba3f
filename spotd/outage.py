"""A database that takes nothing down for long is told past it: its outbox lies in that very
database. Alerts of what happens meanwhile come when it takes them again."""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from spotd.act.alerts import Page
from spotd.clock import Clock
from spotd.model import Event, Severity

log = structlog.get_logger(__name__)

# A restart of PostgreSQL and a disk that somebody clears up are over by then.
LEASES = 3  # so many leases long a daemon could renew none
AGAIN_S = 60.0  # between tries to tell, while no route takes it


class Outage:
    """What every renewal of our leases says about the database: `note` its error, or "" where all
    was written. `page` sends an event by every route, and does not wait for their answers."""

    def __init__(
        self, place: str, clock: Clock, patience_s: float, page: Callable[[Event], Page]
    ) -> None:
        self.patience_s = patience_s
        self._place = place
        self._clock = clock
        self._page = page
        self._lock = threading.Lock()  # a reload renews as well
        self._since_s: float | None = None
        self._sent: tuple[float, Page] | None = None

    def note(self, error: str) -> None:
        """One more renewal."""
        with self._lock:
            now_s = self._clock.monotonic_s()
            if error:
                self._refused(error, now_s)
            elif self._since_s is not None:
                self._took(now_s - self._since_s)

    def _refused(self, error: str, now_s: float) -> None:
        if self._since_s is None:
            self._since_s = now_s
        away_s = now_s - self._since_s
        if away_s < self.patience_s or not self._untold(now_s):
            return
        text = (
            f"{self._place}: for {away_s:.0f} s the database took nothing down: {error}. Nothing is"
            " decided, launched or started again until it does; what trains trains on"
        )
        log.error(text)
        self._sent = now_s, self._page(Event("database_away", text, severity=Severity.ERROR))

    def _untold(self, now_s: float) -> bool:
        """Whether to tell it now: at first, and again when every route had failed."""
        if self._sent is None:
            return True
        at_s, page = self._sent
        return now_s - at_s >= AGAIN_S and page.failed

    def _took(self, away_s: float) -> None:
        self._since_s = None
        if self._sent is None:
            return
        self._sent = None
        text = f"{self._place}: after {away_s:.0f} s the database takes down again: spotd goes on"
        log.warning(text)
        self._page(Event("database_back", text, severity=Severity.INFO))

"""Alert directly, without the database, that the database accepts no writes.

The outbox of alerts is in that same database. Other alerts are sent when it works again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import structlog

from spotd.act.alerts import DirectSend
from spotd.base.clock import Clock
from spotd.domain.events import Event, Severity

log = structlog.get_logger(__name__)

# A restart of PostgreSQL and a disk that somebody clears up are over by then.
LEASES = 3  # so many leases long a daemon could renew none
AGAIN_S = 60.0  # between tries to tell, while no route takes it


class DatabaseOutageAlert:
    """Alert once per outage, and once at its end.

    `note` gets the error of every lease renewal, or "" if it was written. `page` sends an event to
    every alert sink without waiting for the answers.
    """

    def __init__(
        self, place: str, clock: Clock, patience_s: float, page: Callable[[Event], DirectSend]
    ) -> None:
        self.patience_s = patience_s
        self._place = place
        self._clock = clock
        self._page = page
        self._lock = threading.Lock()  # a reload renews as well
        self._since_s: float | None = None
        self._sent: tuple[float, DirectSend] | None = None

    def note(self, error: str) -> None:
        """Note the outcome of one renewal."""
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
        message = (
            f"{self._place}: for {away_s:.0f} s the database accepted no writes: {error}. "
            "Nothing is decided, launched or restarted until it does; running training continues"
        )
        log.error(message)
        self._sent = now_s, self._page(Event("database_away", message, severity=Severity.ERROR))

    def _untold(self, now_s: float) -> bool:
        """Return whether to alert now: the first time, and again after every sink has failed."""
        if self._sent is None:
            return True
        at_s, page = self._sent
        return now_s - at_s >= AGAIN_S and page.failed

    def _took(self, away_s: float) -> None:
        self._since_s = None
        if self._sent is None:
            return
        self._sent = None
        message = f"{self._place}: the database accepts writes again after {away_s:.0f} s"
        log.warning(message)
        self._page(Event("database_back", message, severity=Severity.INFO))

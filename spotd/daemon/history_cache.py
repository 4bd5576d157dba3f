"""The fleet's history as decisions use it: read once for all jobs, and again after a minute."""

from __future__ import annotations

import threading
from collections.abc import Callable

from spotd.domain.node_history import DAYS, UNKNOWN, FleetHistory
from spotd.domain.units import S
from spotd.store.interface import Store

# A place is known by hours and days; what the last minute refused is among the market's refusals.
EVERY_S = 60.0


class HistoryCache:
    """A cached FleetHistory. `days()` is how many days of history count.

    One thread reads at a time; others wait and use its result.
    """

    def __init__(self, store: Store, days: Callable[[], float] = lambda: DAYS) -> None:
        self._store = store
        self._days = days
        self._lock = threading.Lock()
        self._past = UNKNOWN

    def at(self, now_us: int) -> FleetHistory:
        """Return the history, at most EVERY_S old. Raises StoreError."""
        with self._lock:
            since_us = now_us - int(self._days() * 86_400 * S)
            # A clock that was put back does not keep what was read for ever.
            age_us = abs(now_us - self._past.read_at_us)
            if self._past is UNKNOWN or age_us >= EVERY_S * S:
                self._past = self._store.node_history.fleet(since_us, now_us)
            return self._past

"""The fleet's past as the loop decides by it: read once for all jobs, and again when it is old."""

from __future__ import annotations

import threading
from collections.abc import Callable

from spotd.model import S
from spotd.past import DAYS, UNKNOWN, Past
from spotd.store.base import Store

# A place is known by hours and days; what the last minute refused is among the market's refusals.
EVERY_S = 60.0


class PastReader:
    """`at(now)` is the past as of a minute ago at most; `days()` how much of it counts. Read by one
    thread at a time: whoever comes meanwhile waits, and reads nothing."""

    def __init__(self, store: Store, days: Callable[[], float] = lambda: DAYS) -> None:
        self._store = store
        self._days = days
        self._lock = threading.Lock()
        self._past = UNKNOWN

    def at(self, now_us: int) -> Past:
        """Raises StoreError."""
        with self._lock:
            since_us = now_us - int(self._days() * 86_400 * S)
            # A clock that was put back does not keep what was read for ever.
            age_us = abs(now_us - self._past.read_at_us)
            if self._past is UNKNOWN or age_us >= EVERY_S * S:
                self._past = self._store.past(since_us, now_us)
            return self._past

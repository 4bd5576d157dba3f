"""Alert on jobs whose recovery was not tested for a long time.

Once per episode: it begins when a drill is overdue and ends with one that passes.
"""

from __future__ import annotations

from collections.abc import Callable

from spotd.base.clock import Clock
from spotd.domain.events import Event, Severity
from spotd.history.overdue_drills import overdue
from spotd.store.interface import Store

OVERDUE = "drill_overdue"


class OverdueDrills:
    """The periodic task. `days()` without a passed drill are too many; 0 for no alerts."""

    def __init__(self, days: Callable[[], float], clock: Clock) -> None:
        self._days = days
        self._clock = clock

    def look(self, store: Store) -> None:
        """Check once. State is only in the recorded events."""
        days, now_us = self._days(), self._clock.now_us()
        if not days:
            return
        alerted = store.events.keys(OVERDUE, 0)
        for one in overdue(store.jobs.rows(), store.drills.rows(), days, now_us):
            key = f"{OVERDUE}:{one.job.name}:{one.since_us}"
            if key in alerted:
                continue
            text = f"{one.text}: `spotctl drill run {one.job.name} --kind sigterm` tries it"
            event = Event(OVERDUE, text, severity=Severity.WARNING, alert=True, key=key)
            store.events.add(one.job.id, event, now_us)

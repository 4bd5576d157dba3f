"""The duty that tells of jobs whose way back nobody has tried for long, once an episode: it begins
when a drill is overdue and ends with one that passes."""

from __future__ import annotations

from collections.abc import Callable

from spotd.clock import Clock
from spotd.history.overdue import overdue
from spotd.model import Event, Severity
from spotd.store.base import Store

EVERY_S = 3600.0
OVERDUE = "drill_overdue"


class OverdueDrills:
    """`days()` without a drill that passed are too many; 0: never told."""

    def __init__(self, days: Callable[[], float], clock: Clock) -> None:
        self._days = days
        self._clock = clock

    def look(self, store: Store) -> None:
        """One look: nothing is remembered but in the record of events."""
        days, now_us = self._days(), self._clock.now_us()
        if not days:
            return
        told = store.event_keys(OVERDUE, 0)
        for one in overdue(store.jobs(), store.drills(), days, now_us):
            key = f"{OVERDUE}:{one.job.name}:{one.since_us}"
            if key in told:
                continue
            text = f"{one.text}: `spotctl drill run {one.job.name} --kind sigterm` tries it"
            event = Event(OVERDUE, text, severity=Severity.WARNING, alert=True, key=key)
            store.add_event(one.job.id, event, now_us)

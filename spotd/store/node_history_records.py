"""The part of the store's contract about what became of machines and jobs, prices and capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spotd.domain.events import Event
from spotd.domain.job import Job
from spotd.history.interruption_stats import MachineLife
from spotd.store.records import EventRow


class HistoryRecords(Protocol):
    """A part of `spotd.store.interface.Store`."""

    def machine_lives(self, since_us: int) -> list[MachineLife]:
        """Every machine that was asked for since, or lived after that: oldest request first."""
        ...

    def ended_jobs(self, limit: int) -> tuple[list[Job], int]:
        """At most `limit` of those that have ended, the last first, and how many there are."""
        ...

    def pause_job(self, job_id: str, said: Event, at_us: int) -> bool:
        """As by a person, with the event that says why; false, and nothing is told, when that is
        wanted of it already, or its end."""
        ...

    def own_events(self, kinds: Sequence[str], since_us: int) -> list[EventRow]:
        """Those of these kinds that belong to no job, oldest first."""
        ...

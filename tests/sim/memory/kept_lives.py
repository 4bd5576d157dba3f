"""The part of MemoryStore about what became of machines; see `spotd.store.node_history_records`."""

from __future__ import annotations

from collections.abc import Sequence

from spotd.domain.events import Event
from spotd.domain.job import Job
from spotd.history.interruption_stats import MachineLife
from spotd.store.interface import EventRow
from tests.sim.memory import jobs, lives, record
from tests.sim.memory.sold import MemoryMarket


class MemoryLives(MemoryMarket):
    """A part of `tests.sim.memory_store.MemoryStore`, which has what it works on."""

    def machine_lives(self, since_us: int) -> list[MachineLife]:
        return lives.machine_lives(self._here(), since_us)

    def ended_jobs(self, limit: int) -> tuple[list[Job], int]:
        return jobs.ended_jobs(self._here(), limit)

    def pause_job(self, job_id: str, said: Event, at_us: int) -> bool:
        return self._write(jobs.pause, job_id, said, at_us)

    def own_events(self, kinds: Sequence[str], since_us: int) -> list[EventRow]:
        return record.events_of(self._here(), "", kinds, since_us)

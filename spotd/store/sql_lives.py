"""The part of SqlStore about what became of machines; see `spotd.store.life_records`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from spotd.history.lives import MachineLife
from spotd.model import Event, Job
from spotd.store import jobs, lives, record
from spotd.store.shapes import EventRow
from spotd.store.sql_invoices import SqlInvoices
from spotd.store.tallies import Tallies
from spotd.store.tally import Tally


class SqlLives(SqlInvoices, Protocol):
    """A part of `spotd.store.sql.SqlStore`, which has what it works on."""

    def machine_lives(self, since_us: int) -> list[MachineLife]:
        return self._database.read(lambda c: lives.machine_lives(c, since_us))

    @cached_property
    def _tally(self) -> Tally:
        return Tally()

    def tally(self, now_us: int) -> Tallies:
        """What metrics are made of; one caller at a time. The contract of stores has it not."""
        return self._database.read(lambda c: self._tally.read(c, now_us))

    def ended_jobs(self, limit: int) -> tuple[list[Job], int]:
        return self._database.read(lambda c: jobs.ended_jobs(c, limit))

    def pause_job(self, job_id: str, said: Event, at_us: int) -> bool:
        return self._write(lambda tx: jobs.pause(tx, job_id, said, at_us))

    def own_events(self, kinds: Sequence[str], since_us: int) -> list[EventRow]:
        return self._database.read(lambda c: record.events_of(c, None, kinds, since_us))

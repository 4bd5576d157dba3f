"""The part of SqlStore about what became of machines; see `spotd.store.node_history_records`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

from spotd.domain.events import Event
from spotd.domain.job import Job
from spotd.history.interruption_stats import MachineLife
from spotd.store import event_log, jobs, node_history
from spotd.store.metric_queries import MetricQueries
from spotd.store.metric_records import MetricRecords
from spotd.store.records import EventRow
from spotd.store.sql_invoices import SqlInvoices


class SqlLives(SqlInvoices, Protocol):
    """A part of `spotd.store.sql_store.SqlStore`, which has what it works on."""

    def machine_lives(self, since_us: int) -> list[MachineLife]:
        return self._database.read(lambda c: node_history.machine_lives(c, since_us))

    @cached_property
    def _tally(self) -> MetricQueries:
        return MetricQueries()

    def tally(self, now_us: int) -> MetricRecords:
        """What metrics are made of; one caller at a time. The contract of stores has it not."""
        return self._database.read(lambda c: self._tally.read(c, now_us))

    def ended_jobs(self, limit: int) -> tuple[list[Job], int]:
        return self._database.read(lambda c: jobs.ended_jobs(c, limit))

    def pause_job(self, job_id: str, said: Event, at_us: int) -> bool:
        return self._write(lambda tx: jobs.pause(tx, job_id, said, at_us))

    def own_events(self, kinds: Sequence[str], since_us: int) -> list[EventRow]:
        return self._database.read(lambda c: event_log.events_of(c, None, kinds, since_us))

"""Events of jobs and of the deployment, and the deletion of old rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, delete, exists, select

from spotd.domain.events import Event, Severity
from spotd.store import schema
from spotd.store.journal_entries import IMAGE_FOUND
from spotd.store.outputs import OUTPUTS_REMOVED
from spotd.store.session import Repository, read, write
from spotd.store.transaction import Transaction


@dataclass(frozen=True)
class EventRow:
    """One stored event."""

    id: int
    at_us: int
    job_id: str
    event: Event


PRUNE_ROWS = 2000  # deleted in one transaction, so that nobody waits long for the lock
_events, _progress = schema.events.c, schema.progress.c


class EventRepository(Repository):
    """Events of jobs and of the deployment."""

    @read
    def rows(
        self, conn: Connection, job_id: str | None, after_id: int = 0, limit: int = 500
    ) -> list[EventRow]:
        """Events after id `after_id`, oldest first; of all jobs and the deployment if `job_id` is
        None."""
        query = select(schema.events).where(_events.id > after_id).order_by(_events.id).limit(limit)
        if job_id is not None:
            query = query.where(_events.job_id == job_id)
        return [_event_row(row) for row in conn.execute(query)]

    @read
    def last(self, conn: Connection, job_id: str, kind: str) -> EventRow | None:
        """The job's newest event of a kind; None if there is none."""
        query = select(schema.events).where(_events.job_id == job_id, _events.kind == kind)
        row = conn.execute(query.order_by(_events.id.desc()).limit(1)).one_or_none()
        return _event_row(row) if row is not None else None

    @read
    def of_kinds(
        self, conn: Connection, job_id: str, kinds: Sequence[str], since_us: int = 0
    ) -> list[EventRow]:
        """The job's events of these kinds since `since_us`, oldest first."""
        return _of_kinds(conn, job_id, kinds, since_us)

    @read
    def keys(self, conn: Connection, kind: str, since_us: int) -> set[str]:
        """The keys of all events of a kind since `since_us`."""
        query = select(_events.key).where(_events.kind == kind, _events.at_us >= since_us)
        return set(conn.execute(query).scalars())

    @write
    def add(self, tx: Transaction, job_id: str, event: Event, at_us: int) -> None:
        """Record an event that no decision made: an API action or a periodic task.

        An event of an unknown job becomes the deployment's.
        """
        jobs = schema.jobs.c
        known = tx.conn.execute(select(jobs.id).where(jobs.id == job_id)).scalar_one_or_none()
        tx.event(known or "", event, at_us)

    @read
    def image_digest(self, conn: Connection, job_id: str) -> str:
        """The digest of the container image the job started with; "" while no node reported one."""
        query = select(_events.data).where(_events.job_id == job_id, _events.kind == IMAGE_FOUND)
        data = conn.execute(query.order_by(_events.id).limit(1)).scalar_one_or_none()
        return str(json.loads(data).get("digest", "")) if data else ""

    @read
    def of_deployment(
        self, conn: Connection, kinds: Sequence[str], since_us: int
    ) -> list[EventRow]:
        """Events of these kinds that belong to no job, oldest first."""
        return _of_kinds(conn, None, kinds, since_us)

    def prune(self, before_us: int) -> int:
        """Delete events, progress, refusals, prices and delivered alerts from before `before_us`.

        Returns the number of rows. The audit stays.
        """
        deleted = some = self.session.write(lambda tx: _prune_some(tx.conn, before_us))
        while some:
            some = self.session.write(lambda tx: _prune_some(tx.conn, before_us))
            deleted += some
        return deleted


def _of_kinds(
    conn: Connection, job_id: str | None, kinds: Sequence[str], since_us: int
) -> list[EventRow]:
    query = (
        select(schema.events)
        .where(_events.job_id == job_id, _events.kind.in_(kinds), _events.at_us >= since_us)
        .order_by(_events.id)
    )
    return [_event_row(row) for row in conn.execute(query)]


def _event_row(row: Any) -> EventRow:
    return EventRow(
        id=row.id,
        at_us=row.at_us,
        job_id=row.job_id or "",
        event=Event(
            kind=row.kind,
            text=row.text,
            node_id=row.node_id,
            severity=Severity(row.severity),
            alert=row.alert,
            key=row.key,
            data=json.loads(row.data),
        ),
    )


def _prune_some(conn: Connection, before_us: int) -> int:
    """Delete up to PRUNE_ROWS of each kind; the number of rows deleted."""
    unfinished = select(schema.jobs.c.id).where(schema.jobs.c.outcome.is_(None))
    pins = (_events.kind == IMAGE_FOUND) & _events.job_id.in_(unfinished)
    pins |= _events.kind == OUTPUTS_REMOVED  # what is stored, and costs, is told by it
    alerts, history, refusals = schema.alerts, schema.price_history, schema.refusals
    old = [
        # Which image a job began with stays for as long as it may go on.
        (schema.events, _events.id, (_events.at_us < before_us) & ~pins),
        (schema.progress, _progress.id, _progress.at_us < before_us),
        (alerts, alerts.c.id, (alerts.c.sent_at_us > 0) & (alerts.c.sent_at_us < before_us)),
    ]
    deleted = 0
    for table, key, condition in old:
        some = select(key).where(condition).limit(PRUNE_ROWS)
        deleted += conn.execute(delete(table).where(key.in_(some))).rowcount
    deleted += conn.execute(delete(refusals).where(refusals.c.at_us < before_us)).rowcount
    # The price that was in force then is not an old one: it may be in force still.
    newer = history.alias()
    replaced = exists().where(
        newer.c.offer_key == history.c.offer_key,
        newer.c.at_us > history.c.at_us,
        newer.c.at_us <= before_us,
    )
    old_prices = delete(history).where(history.c.at_us < before_us, replaced)
    return deleted + conn.execute(old_prices).rowcount

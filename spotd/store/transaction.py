"""The parts that every write shares: jobs that become due, and events, written in bulk at its
end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, case, select, update

from spotd.base.log import redactor
from spotd.domain.events import Event
from spotd.domain.units import S
from spotd.store import schema
from spotd.store.codec import decode_spec, encode

COALESCE_S = 60.0  # an undelivered alert of the same key takes in repeats for this long
DEFAULT_ROUTE = "default"

_jobs, _alerts, _counters = schema.jobs, schema.alerts, schema.counters
_TOUCH = (
    update(_jobs)
    .where(_jobs.c.id == bindparam("job"))
    .values(
        notes=_jobs.c.notes + 1,
        due_at_us=case(
            ((_jobs.c.due_at_us > 0) & (_jobs.c.due_at_us < bindparam("at")), _jobs.c.due_at_us),
            else_=bindparam("at"),
        ),
    )
)


@dataclass(frozen=True)
class PendingAlert:
    """A message of the outbox that is not delivered yet."""

    id: int
    at_us: int


@dataclass
class NewAlert:
    """A message that is new in the outbox."""

    route: str
    job_id: str
    event: Event
    at_us: int
    repeats: int = 1


def coalesced(
    alerts: Iterable[tuple[str, Event, int]],
    routes: Mapping[str, tuple[str, ...]],
    waiting: Mapping[tuple[str, str], PendingAlert],
) -> tuple[list[NewAlert], dict[int, int]]:
    """Sort alerts, each (job id, event, time), into new messages and repeats of `waiting` ones.

    Returns the new messages, and repeats by id. `waiting` is by route and key; `routes` are those
    of jobs.
    """
    fresh: list[NewAlert] = []
    repeats: dict[int, int] = {}
    newest: dict[tuple[str, str], PendingAlert | NewAlert] = dict(waiting)
    for job_id, event, at_us in alerts:
        own = (event.route,) if event.route else routes.get(job_id, (DEFAULT_ROUTE,))
        for route in own:
            known = newest.get((route, event.key)) if event.key else None
            if known is None or at_us - known.at_us >= COALESCE_S * S:
                alert = newest[route, event.key] = NewAlert(route, job_id, event, at_us)
                fresh.append(alert)
            elif isinstance(known, NewAlert):
                known.repeats += 1
            else:
                repeats[known.id] = repeats.get(known.id, 0) + 1
    return fresh, repeats


_ADD = (
    update(_counters)
    .where(_counters.c.name == bindparam("counter"))
    .values(value=_counters.c.value + bindparam("more"))
    .returning(_counters.c.value)
)


class Transaction:
    """One transaction being written. `due` says whether it made a job due."""

    def __init__(self, conn: Connection) -> None:
        self.conn = conn
        self.due = False
        self._moved: set[str] = set()
        self._events: list[tuple[str, Event, int]] = []
        self._progress: list[dict[str, Any]] = []

    def touch(self, jobs: Mapping[str, int]) -> None:
        """Make each job due, at the time of an observation, and lock its row.

        Call it before touching nodes, jobs first and in order, or two writers could deadlock.
        """
        if jobs:
            rows = [{"job": job, "at": max(jobs[job], 1)} for job in sorted(jobs)]
            if self.conn.execute(_TOUCH, rows).rowcount:
                self.due = True

    def event(self, job_id: str, event: Event, at_us: int) -> None:
        """Store `event`, and its alert, when the transaction ends; secrets in its text are hidden.

        The job id "" stands for the deployment.
        """
        event = replace(event, text=redactor.clean(event.text))
        self._events.append((job_id, event, at_us))

    def progress(self, row: dict[str, Any]) -> None:
        """Store a progress row (without its id) when the transaction ends."""
        self._progress.append(row)

    def market_moved(self) -> None:
        """Refusals, limits or providers changed: caches of them are outdated."""
        self._moved.add("market")

    def offers_moved(self) -> None:
        """Offers changed: caches of them are outdated."""
        self._moved.add("offers")

    def take_ids(self, count: int) -> int:
        """The first of `count` new ids; others wait for theirs until this transaction ends."""
        return self._add("ids", count) - count + 1

    def _add(self, counter: str, more: int) -> int:
        return int(self.conn.execute(_ADD, {"counter": counter, "more": more}).scalar_one())

    def flush(self) -> None:
        """Write the collected changes; the last call of the transaction."""
        if self._events or self._progress:
            self._flush_rows()
        for name in sorted(self._moved):
            self._add(name, 1)

    def _flush_rows(self) -> None:
        number = self.take_ids(len(self._events) + len(self._progress))
        if self._progress:
            rows = [
                {"id": number + at, **row, "losses": encode(row["losses"])}
                for at, row in enumerate(self._progress)
            ]
            self.conn.execute(schema.progress.insert(), rows)
            number += len(rows)
        if self._events:
            events = [_event_row(number + at, *event) for at, event in enumerate(self._events)]
            self.conn.execute(schema.events.insert(), events)
            alerts = [event for event in self._events if event[1].alert]
            if alerts:
                self._send(alerts)

    def _send(self, alerts: list[tuple[str, Event, int]]) -> None:
        """Add one outbox row per route of the event's job, or count a repeat of a waiting row."""
        routes = self._routes({job_id for job_id, _, _ in alerts if job_id})
        waiting = self._waiting([event.key for _, event, _ in alerts if event.key])
        fresh, repeats = coalesced(alerts, routes, waiting)
        for number, count in sorted(repeats.items()):
            where = _alerts.c.id == number
            self.conn.execute(
                update(_alerts).where(where).values(repeats=_alerts.c.repeats + count)
            )
        if fresh:
            first = self.take_ids(len(fresh))
            rows = [{"id": first + at, **_alert_row(row)} for at, row in enumerate(fresh)]
            self.conn.execute(_alerts.insert(), rows)

    def _routes(self, jobs: Iterable[str]) -> dict[str, tuple[str, ...]]:
        query = select(_jobs.c.id, _jobs.c.spec).where(_jobs.c.id.in_(sorted(jobs)))
        return {row.id: decode_spec(row.spec).monitoring.alerts for row in self.conn.execute(query)}

    def _waiting(self, keys: Iterable[str]) -> dict[tuple[str, str], PendingAlert]:
        wanted = sorted(set(keys))
        if not wanted:
            return {}
        query = (
            select(_alerts.c.id, _alerts.c.route, _alerts.c.key, _alerts.c.at_us)
            .where(_alerts.c.sent_at_us == 0, _alerts.c.key.in_(wanted))
            .order_by(_alerts.c.id)
            .with_for_update()
        )
        rows = self.conn.execute(query)
        return {(row.route, row.key): PendingAlert(row.id, row.at_us) for row in rows}


def _event_row(number: int, job_id: str, event: Event, at_us: int) -> dict[str, Any]:
    return {
        "id": number,
        "at_us": at_us,
        "job_id": job_id or None,
        "kind": event.kind,
        "text": event.text,
        "node_id": event.node_id,
        "severity": event.severity.value,
        "alert": event.alert,
        "key": event.key,
        "data": encode(event.data),
    }


def _alert_row(alert: NewAlert) -> dict[str, Any]:
    return {
        "route": alert.route,
        "key": alert.event.key,
        "at_us": alert.at_us,
        "job_id": alert.job_id or None,
        "event": encode(alert.event),
        "repeats": alert.repeats,
        "next_at_us": alert.at_us,
    }

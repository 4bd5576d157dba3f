"""One transaction: what it overwrites is remembered, so that one that fails leaves no trace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, TypeVar

from spotd.domain.events import Event
from spotd.domain.fast_replace import changed
from spotd.domain.job import Job
from spotd.domain.node import Node
from spotd.domain.view import Throughput
from spotd.store.codec import encode
from spotd.store.columns import clean
from spotd.store.events import EventRow
from spotd.store.progress import ProgressRow
from spotd.store.transaction import DEFAULT_ROUTE, PendingAlert, coalesced
from tests.sim.memory.tables import Failures, Message, Tables

K = TypeVar("K")
V = TypeVar("V")

_ABSENT = object()


class Transaction:
    """Writes go through here. `due` says whether one of them made a job due."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.due = False
        self._undo: list[tuple[Any, Any, Any]] = []  # what, where, and what was there
        self._events: list[tuple[str, Event, int]] = []
        self._progress: list[dict[str, Any]] = []
        self._market_moved = False

    def put(self, table: MutableMapping[K, V], key: K, value: V) -> None:
        """Set one entry."""
        self._undo.append((table, key, table.get(key, _ABSENT)))
        table[key] = value

    def drop(self, table: MutableMapping[K, V], key: K) -> None:
        """Remove one entry, if it is there."""
        if key in table:
            self._undo.append((table, key, table[key]))
            del table[key]

    def append(self, rows: list[V], row: V) -> None:
        """Add a row behind the others."""
        self._undo.append((rows, len(rows), _ABSENT))
        rows.append(row)

    def undo(self) -> None:
        """Everything is as it was before."""
        for table, key, old in reversed(self._undo):
            if old is _ABSENT:
                del table[key]
            else:
                table[key] = old
        self.tables.shown.clear()
        self.tables.chosen.clear()
        self.tables.on_sale = None

    # --- jobs and nodes

    def touch(self, jobs: Mapping[str, int]) -> None:
        """Note that something was observed about each job at that time."""
        tables = self.tables
        for job_id, at_us in jobs.items():
            job = tables.jobs.get(job_id)
            if job is not None:
                self.put(tables.jobs, job_id, changed(job, notes=job.wakeup.notes + 1))
                soon_us = max(at_us, 1)
                self.put(tables.due, job_id, min(tables.due.get(job_id, soon_us), soon_us))
                self.due = True

    def change_job(self, job: Job, **new: object) -> None:
        """Set fields of a job."""
        self.put(self.tables.jobs, job.id, changed(job, **_cleaned(new)))

    def change_node(self, node: Node, **new: object) -> Node:
        """Set what was observed of a node: not its state, nor whether it is chosen."""
        now = changed(node, **_cleaned(new))
        self.put(self.tables.nodes, node.id, now)
        shown = self.tables.shown.get(node.job_id)
        if shown is not None:
            self.tables.shown[node.job_id] = tuple(now if n.id == now.id else n for n in shown)
        return now

    def decide_node(self, node: Node, **new: object) -> Node:
        """Set any fields of a node, or add it. Calls that failed count for the armed effect."""
        tables = self.tables
        now = changed(node, **_cleaned(new))
        counted = counted_failures(now, tables.failures.get(node.id))
        now = changed(now, **counted)
        self.put(tables.nodes, node.id, now)
        tables.shown.pop(node.job_id, None)
        tables.chosen.pop(node.job_id, None)
        return now

    # --- what is written at the end

    def event(self, job_id: str, event: Event, at_us: int) -> None:
        """Store `event` when the transaction ends; "" is the deployment's own."""
        self._events.append((job_id, event, at_us))

    def progress(self, row: dict[str, Any]) -> None:
        """Store a progress row (without its id) when the transaction ends."""
        self._progress.append(row)

    def market_moved(self) -> None:
        """Refusals, limits or providers changed."""
        self._market_moved = True

    def take_ids(self, count: int) -> int:
        """The first of `count` fresh ids."""
        last = self.tables.counters["ids"]
        self.put(self.tables.counters, "ids", last + count)
        return last + 1

    def flush(self) -> None:
        """Write what was collected; the last thing in the transaction."""
        if self._events or self._progress:
            number = self.take_ids(len(self._events) + len(self._progress))
            for at, row in enumerate(self._progress, start=number):
                self._add_progress(at, row)
            for at, said in enumerate(self._events, start=number + len(self._progress)):
                row = _event_row(at, *said)
                self.append(self.tables.events, row)
                self.append(self._rows(self.tables.events_of, row.job_id), row)
            alerts = [said for said in self._events if said[1].alert]
            if alerts:
                self._send(alerts)
        if self._market_moved:
            self.tables.market = None

    def _add_progress(self, number: int, row: dict[str, Any]) -> None:
        tables, job_id = self.tables, row["job_id"]
        stored = ProgressRow(**{n: v for n, v in row.items() if n != "job_id"}, id=number)
        self.append(self._rows(tables.progress, job_id), stored)
        report = Throughput(
            generation=stored.generation,
            at_us=stored.at_us,
            step=stored.to_step,
            tokens=stored.tokens,
            busy_s=stored.busy_s,
        )
        reports = self._rows(tables.reports, (job_id, stored.generation))
        self.append(reports, report)
        if len(reports) > 1 and reports[-2].at_us > report.at_us:  # heard late
            self.put(tables.reports, (job_id, stored.generation), _in_time(reports))

    def _rows(self, table: dict[K, list[V]], key: K) -> list[V]:
        if key not in table:
            self.put(table, key, [])
        return table[key]

    def _send(self, alerts: list[tuple[str, Event, int]]) -> None:
        tables = self.tables
        routes = {
            job_id: tables.jobs[job_id].spec.monitoring.alerts for job_id, _, _ in alerts if job_id
        }
        fresh, repeats = coalesced(alerts, routes, self._waiting(alerts, routes))
        for number, count in repeats.items():
            known = tables.outbox[number]
            self.put(tables.outbox, number, changed(known, repeats=known.repeats + count))
        if not fresh:
            return
        for at, new in enumerate(fresh, start=self.take_ids(len(fresh))):
            event, key = _through_json(new.event), clean(new.event.key)
            message = Message(
                id=at,
                route=new.route,
                key=key,
                at_us=new.at_us,
                job_id=new.job_id,
                event=event,
                repeats=new.repeats,
                next_at_us=new.at_us,
            )
            self.put(tables.outbox, at, message)
            place = (new.route, key)
            self.put(tables.waiting, place, (*tables.waiting.get(place, ()), at))

    def _waiting(
        self, alerts: Iterable[tuple[str, Event, int]], routes: Mapping[str, tuple[str, ...]]
    ) -> dict[tuple[str, str], PendingAlert]:
        """The newest message to each of the places that the alerts go to."""
        tables = self.tables
        found: dict[tuple[str, str], PendingAlert] = {}
        for job_id, event, _ in alerts:
            for route in routes.get(job_id, (DEFAULT_ROUTE,)):
                numbers = tables.waiting.get((route, event.key)) if event.key else None
                if numbers:
                    found[route, event.key] = PendingAlert(
                        numbers[-1], tables.outbox[numbers[-1]].at_us
                    )
        return found


def counted_failures(node: Node, failures: Failures | None) -> dict[str, object]:
    """The fields that tell of failures: those of another effect than the armed one do not count."""
    if failures is None or failures.effect is not node.call.effect:
        return {"effect_failures": 0, "effect_failed_at_us": 0}
    return {"effect_failures": failures.count, "effect_failed_at_us": failures.at_us}


def _cleaned(fields: dict[str, object]) -> dict[str, object]:
    return {n: clean(value) if type(value) is str else value for n, value in fields.items()}


def _in_time(reports: list[Throughput]) -> list[Throughput]:
    return sorted(reports, key=lambda report: report.at_us)


def _event_row(number: int, job_id: str, event: Event, at_us: int) -> EventRow:
    texts = {"text": clean(event.text), "node_id": clean(event.node_id), "key": clean(event.key)}
    return EventRow(number, at_us, job_id, changed(_through_json(event), **texts))


def _through_json(event: Event) -> Event:
    """As a database gives it back."""
    return changed(event, data=json.loads(encode(event.data)) if event.data else {})

"""The outbox: what waits to be sent, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence

from spotd.domain.fast_replace import changed
from spotd.store.alerts import AlertRow, RouteRow
from spotd.store.columns import clean
from tests.sim.memory.tables import Message, Tables
from tests.sim.memory.transaction import Transaction


def due_alerts(tables: Tables, now_us: int, limit: int) -> list[AlertRow]:
    """Unsent rows whose time has come, oldest first."""
    due = sorted(number for number, row in tables.outbox.items() if row.next_at_us <= now_us)
    return [_row(tables, tables.outbox[number]) for number in due[:limit]]


def route_rows(tables: Tables) -> list[RouteRow]:
    """See Store.alerts.routes."""
    rows = [*tables.outbox.values(), *tables.delivered.values()]
    return [_standing(tables, route) for route in sorted({row.route for row in rows})]


def _standing(tables: Tables, route: str) -> RouteRow:
    waiting = [row for row in tables.outbox.values() if row.route == route]
    told = [r.sent_at_us for r in tables.delivered.values() if r.route == route and not r.error]
    failed = max((row for row in waiting if row.error), key=lambda row: row.id, default=None)
    since_us = min((row.at_us for row in waiting), default=0)
    error = failed.error if failed else ""
    return RouteRow(route, max(told, default=0), len(waiting), since_us, error)


def _row(tables: Tables, message: Message) -> AlertRow:
    job = tables.jobs.get(message.job_id)
    return AlertRow(
        id=message.id,
        route=message.route,
        at_us=message.at_us,
        job_id=message.job_id,
        job_name="" if job is None else job.name,
        event=message.event,
        repeats=message.repeats,
        tries=message.tries,
    )


def mark_alerts(
    tx: Transaction, rows: Sequence[AlertRow], sent_at_us: int, next_at_us: int, error: str
) -> None:
    """See Store.alerts.mark."""
    tables = tx.tables
    for row in rows:
        known = tables.outbox.get(row.id)
        if known is None:
            continue
        more = known.repeats - row.repeats  # it happened again while the message was on its way
        said = {"next_at_us": next_at_us, "error": clean(error), "tries": known.tries + 1}
        if more > 0 and sent_at_us > 0:
            tx.put(tables.outbox, row.id, changed(known, repeats=more, **said))
        elif more > 0 or sent_at_us == 0:
            tx.put(tables.outbox, row.id, changed(known, **said))
        else:
            _deliver(tx, changed(known, sent_at_us=sent_at_us, **said))


def put_off_alerts(tx: Transaction, rows: Sequence[AlertRow], next_at_us: int) -> None:
    """See Store.alerts.put_off."""
    tables = tx.tables
    for row in rows:
        if known := tables.outbox.get(row.id):
            tx.put(tables.outbox, row.id, changed(known, next_at_us=next_at_us))


def _deliver(tx: Transaction, message: Message) -> None:
    tables = tx.tables
    tx.drop(tables.outbox, message.id)
    tx.put(tables.delivered, message.id, message)
    place = (message.route, message.key)
    left = tuple(number for number in tables.waiting[place] if number != message.id)
    if left:
        tx.put(tables.waiting, place, left)
    else:
        tx.drop(tables.waiting, place)

"""The outbox: what waits to be sent, and what became of it."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    and_,
    bindparam,
    case,
    func,
    select,
    update,
)

from spotd.domain.events import Event
from spotd.store import schema
from spotd.store.codec import decode
from spotd.store.interface import AlertRow, RouteRow
from spotd.store.rows import ZERO
from spotd.store.transaction import Transaction

_alerts, _jobs = schema.alerts.c, schema.jobs.c
_SENT = bindparam("sent", type_=BigInteger)
_TOLD = bindparam("told", type_=Integer)
_MORE = _alerts.repeats > _TOLD  # it happened again while the message was on its way
_MARK = (
    update(schema.alerts)
    .where(_alerts.id == bindparam("alert"), _alerts.sent_at_us == 0)
    .values(
        sent_at_us=case((_MORE, 0), else_=_SENT),
        repeats=case((and_(_MORE, _SENT > 0), _alerts.repeats - _TOLD), else_=_alerts.repeats),
        next_at_us=bindparam("next"),
        error=bindparam("said"),
        tries=_alerts.tries + 1,
    )
)


_DUE = (
    select(schema.alerts, _jobs.name.label("job_name"))
    .join(schema.jobs, _jobs.id == _alerts.job_id, isouter=True)
    .where(_alerts.sent_at_us == ZERO, _alerts.next_at_us <= bindparam("now", type_=BigInteger))
    .order_by(_alerts.id)
    .limit(bindparam("most", type_=Integer))
)


def due_alerts(conn: Connection, now_us: int, limit: int) -> list[AlertRow]:
    """Unsent rows whose time has come, oldest first."""
    return [
        AlertRow(
            id=row.id,
            route=row.route,
            at_us=row.at_us,
            job_id=row.job_id or "",
            job_name=row.job_name or "",
            event=decode(Event, row.event),
            repeats=row.repeats,
            tries=row.tries,
        )
        for row in conn.execute(_DUE, {"now": now_us, "most": limit})
    ]


def route_rows(conn: Connection) -> list[RouteRow]:
    """See Store.route_rows."""
    unsent, told = _alerts.sent_at_us == ZERO, and_(_alerts.sent_at_us > ZERO, _alerts.error == "")
    found = conn.execute(
        select(
            _alerts.route,
            func.max(case((told, _alerts.sent_at_us), else_=0)).label("delivered"),
            func.sum(case((unsent, 1), else_=0)).label("waiting"),
            func.min(case((unsent, _alerts.at_us))).label("since"),
            func.max(case((and_(unsent, _alerts.error != ""), _alerts.id), else_=0)).label(
                "failed"
            ),
        )
        .group_by(_alerts.route)
        .order_by(_alerts.route)
    ).all()
    failed = select(_alerts.id, _alerts.error).where(_alerts.id.in_([row.failed for row in found]))
    errors = {row.id: row.error for row in conn.execute(failed)}
    return [
        RouteRow(
            row.route,
            int(row.delivered),
            int(row.waiting),
            int(row.since or 0),
            errors.get(row.failed, ""),
        )
        for row in found
    ]


def mark_alerts(
    tx: Transaction, rows: Sequence[AlertRow], sent_at_us: int, next_at_us: int, error: str
) -> None:
    """See Store.mark_alerts."""
    said = {"sent": sent_at_us, "next": next_at_us, "said": error}
    if rows:
        tx.conn.execute(_MARK, [{"alert": row.id, "told": row.repeats, **said} for row in rows])
